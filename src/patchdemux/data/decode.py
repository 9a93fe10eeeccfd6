"""Photos decoded: wholly, as 8-bit RGB, or not at all."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from patchdemux.data.base import ImageError

if TYPE_CHECKING:
    from PIL import Image

# Without EPS and the like, for which Pillow starts other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")


def read_bytes(path: Path) -> bytes:
    """The file's content, or an `ImageError` that says why not."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise unreadable(path, "the file is missing") from None
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error


def unreadable(name: str | Path, reason: str) -> ImageError:
    """The error of an image that cannot be read."""
    return ImageError(f"cannot read image {name}: {reason}")


def decode(photo: bytes, name: str, *, fill: int, exif_rotation: bool) -> Image.Image:
    """The whole photo as an 8-bit RGB image, or an `ImageError` that says why not."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("reading images needs Pillow: pip install 'patchdemux[data]'") from error
    if not photo:
        raise unreadable(name, "the file is empty")
    try:
        with whole_images_only(), Image.open(io.BytesIO(photo), formats=FORMATS) as image:
            check_area(image.size)
            image.load()
            upright = ImageOps.exif_transpose(image) if exif_rotation else image
            return as_rgb(upright, name, fill)
    except UnidentifiedImageError:
        reason = f"it is not an image of a known format ({', '.join(FORMATS)})"
        raise unreadable(name, reason) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = f"it is too large ({error}); raise PIL.Image.MAX_IMAGE_PIXELS if that is right"
        raise unreadable(name, reason) from error
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything on damaged bytes
        reason = f"it is truncated or damaged ({type(error).__name__}: {error})"
        raise unreadable(name, reason) from error


def photo_size(photo: bytes, name: str, *, exif_rotation: bool) -> tuple[int, int]:
    """Height and width of what `decode` makes of this photo; of most, from its header alone."""
    from PIL import Image

    if not exif_rotation:
        with suppress(Exception), Image.open(io.BytesIO(photo), formats=("JPEG", "PNG")) as image:
            if image.format in ("JPEG", "PNG"):  # not a format that JPEG's reader also opens
                return image.height, image.width
    whole = decode(photo, name, fill=0, exif_rotation=exif_rotation)
    return whole.height, whole.width


def check_area(size: tuple[int, int]) -> None:
    """Refuse what Pillow only warns of; warnings get lost, and depend on the caller's settings."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and size[0] * size[1] > limit:
        raise Image.DecompressionBombError(f"{size[0]} x {size[1]} pixels, limit {limit} pixels")


def as_rgb(image: Image.Image, name: str, fill: int) -> Image.Image:
    """The image as 8-bit RGB, transparent pixels on a gray of `fill`."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        reason = f"pixels of Pillow's mode {image.mode} have no known range of values"
        raise unreadable(name, reason)
    if image.has_transparency_data:
        behind = Image.new("RGBA", image.size, (fill, fill, fill, 255))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    return image.convert("RGB")


_readers = threading.Lock()
_reading = 0
_lenient_before = False


@contextmanager
def whole_images_only() -> Iterator[None]:
    """Make Pillow refuse truncated files, whatever another library told it.

    `LOAD_TRUNCATED_IMAGES` is one switch for the whole process, which training code likes to turn on:
    Pillow then invents the missing part. The first reader turns it off, the last one puts it back.
    """
    global _reading, _lenient_before
    from PIL import ImageFile

    with _readers:
        if _reading == 0:
            _lenient_before = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _reading += 1
    try:
        yield
    finally:
        with _readers:
            _reading -= 1
            if _reading == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _lenient_before
