"""From a photo to the model's input: decoded whole or not at all, made RGB, brought to one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from patchdemux.data.decode import decode, read_bytes, unreadable
from patchdemux.threat import Size, as_size

if TYPE_CHECKING:
    from PIL import Image

FILTERS = ("bilinear", "bicubic", "lanczos", "box", "nearest")


@dataclass(frozen=True)
class Preprocessing:
    """How a photo becomes the model's input.

    The default is the paper's protocol: the photo is squashed to the model's size, whatever its
    shape, with bilinear resampling. Like every filter here but "nearest" that is antialiased: when
    a photo shrinks, every pixel of it counts.

    Photos become RGB: gray and palette pictures and CMYK are converted, 16-bit gray is scaled down to
    8 bits, of several frames the first is taken. Color profiles are not applied.

    Args:
        size: height and width of the result; one integer means a square.
        mode: "squash" to the size; "crop": resize until the photo just fills the size, and cut its
            middle out; "letterbox": resize until it just fits, centered, and fill the borders.
        filter: "bilinear", "bicubic", "lanczos", "box" or "nearest".
        fill: gray in [0, 1] of letterbox borders, and of what lies behind transparent pixels.
        exif_rotation: turn photos as their EXIF tag says. The published protocol does not.

    >>> Preprocessing(448).description["mode"]
    'squash'
    """

    size: Size
    mode: str = "squash"
    filter: str = "bilinear"
    fill: float = 0.5
    exif_rotation: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_size("size", self.size))
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, but got {self.mode!r}")
        if self.filter not in FILTERS:
            raise ValueError(f"filter must be one of {', '.join(FILTERS)}, but got {self.filter!r}")
        if not 0 <= self.fill <= 1:
            raise ValueError(f"fill must be a gray within [0, 1], but got {self.fill}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        return as_size("size", self.size)

    @property
    def description(self) -> dict[str, Any]:
        """All choices, as plain JSON values."""
        return {
            "size": list(self.image_size),
            "mode": self.mode,
            "filter": self.filter,
            "fill": float(self.fill),
            "exif_rotation": self.exif_rotation,
        }

    def layout(self, photo: tuple[int, int]) -> Layout:
        """Where a photo of this height and width lies in the input, once it is resized."""
        return MODES[self.mode](photo, self.image_size)

    def resized(self, image: Image.Image) -> Image.Image:
        """A decoded photo at the size of the input."""
        from PIL import Image

        layout = self.layout((image.height, image.width))
        resample = Image.Resampling[self.filter.upper()]
        sized = image.resize((layout.width, layout.height), resample)
        if layout == (*self.image_size, 0, 0):
            return sized
        height, width = self.image_size
        framed = Image.new("RGB", (width, height), (self.gray, self.gray, self.gray))
        framed.paste(sized, (layout.left, layout.top))
        return framed

    @property
    def gray(self) -> int:
        """The fill as a byte."""
        return round(self.fill * 255)

    def __call__(self, photo: bytes, name: str) -> Tensor:
        """The photo in these bytes of a JPEG, PNG, ... as float32 (3, height, width) in [0, 1].

        Raises:
            ImageError: if the bytes are no image, or not a whole one; it calls the photo `name`.
        """
        image = decode(photo, name, fill=self.gray, exif_rotation=self.exif_rotation)
        try:
            sized = self.resized(image)
        except ValueError as error:
            raise unreadable(name, str(error)) from error
        pixels = np.array(sized)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)


def as_preprocessing(value: Preprocessing | Size) -> Preprocessing:
    """`value` itself, or the paper's preprocessing to that size."""
    return value if isinstance(value, Preprocessing) else Preprocessing(value)


def read_image(path: str | Path, preprocessing: Preprocessing | Size) -> Tensor:
    """The photo at `path` as float32 (3, height, width) in [0, 1].

    Raises:
        ImageError: if it is missing, truncated or not an image.
    """
    return as_preprocessing(preprocessing)(read_bytes(Path(path)), str(path))


class Layout(NamedTuple):
    """Where the resized photo lies in the input; what reaches beyond the input is cut off."""

    height: int
    width: int
    top: int
    left: int


def squash(photo: tuple[int, int], size: tuple[int, int]) -> Layout:
    """The whole photo at exactly this size, its shape ignored."""
    return Layout(*size, 0, 0)


def crop(photo: tuple[int, int], size: tuple[int, int]) -> Layout:
    """The middle of the photo, resized until it just fills this size."""
    (tall, wide), (height, width) = photo, size
    if height * wide >= width * tall:  # too wide: its height must fit
        filled = (height, max(width, height * wide // tall))
    else:
        filled = (max(height, width * tall // wide), width)
    if filled[0] * filled[1] > 100 * height * width:
        raise ValueError(f"{wide} x {tall} pixels are too long and thin to be cropped")
    top, left = (round((side - wanted) / 2) for side, wanted in zip(filled, size, strict=True))
    return Layout(*filled, -top, -left)


def letterbox(photo: tuple[int, int], size: tuple[int, int]) -> Layout:
    """The whole photo in its own shape, centered."""
    (tall, wide), (height, width) = photo, size
    if height * wide >= width * tall:  # too wide: its width must fit
        fitted = (max(1, round(width * tall / wide)), width)
    else:
        fitted = (height, max(1, round(height * wide / tall)))
    top, left = ((wanted - side) // 2 for side, wanted in zip(fitted, size, strict=True))
    return Layout(*fitted, top, left)


MODES: dict[str, Callable[[tuple[int, int], tuple[int, int]], Layout]] = {
    "squash": squash,
    "crop": crop,
    "letterbox": letterbox,
}
