"""What the attacker may do: replace the pixels inside rectangles, anywhere in the image."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from patchdemux.inputs import as_number

Size = int | Sequence[int]
Shapes = tuple[tuple[int, int], ...]


def as_integers(value: Any) -> tuple[int, int] | None:
    """Two integers, or one that counts for both; None for anything else. NumPy's are welcome."""
    try:
        first, second = value if hasattr(value, "__len__") else (value, value)
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        return None


def as_size(name: str, size: Size) -> tuple[int, int]:
    """`size` as (height, width); one integer means a square."""
    pair = as_integers(size)
    if pair is None:
        raise ValueError(f"{name} must be one integer or (height, width), but got {size!r}")
    height, width = pair
    if height < 1 or width < 1:
        raise ValueError(f"{name} must be at least 1 x 1 pixels, but got {height} x {width}")
    return height, width


@dataclass(frozen=True, repr=False)
class PatchThreat:
    """Patches of at most `height` x `width` pixels of the model's input, with any content, anywhere.

    A defense that holds against one rectangle of `height` x `width` holds against all `shapes` too,
    since each of them lies inside such a rectangle.

    Args:
        height, width: of the patch; with `shapes`, the rectangle that holds them all.
        count: so many patches at once, which may overlap.
        shapes: every patch lies inside one of these (height, width); none means `height` x `width`.

    >>> print(PatchThreat.from_area(0.02, 448))
    patch of 64 x 64 pixels
    >>> PatchThreat(64, 64), PatchThreat(64, 64, count=2)
    (PatchThreat(height=64, width=64), PatchThreat(height=64, width=64, count=2))
    """

    height: int
    width: int
    count: int = 1
    shapes: Shapes = ()

    def __post_init__(self) -> None:
        height, width = as_size("a patch", (self.height, self.width))
        object.__setattr__(self, "height", height)
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "count", operator.index(self.count))
        if self.count < 1:
            raise ValueError(f"count is the number of patches, at least 1, but got {self.count}")
        shapes = maximal(as_size("a shape", shape) for shape in self.shapes)
        if shapes and (max(h for h, _ in shapes), max(w for _, w in shapes)) != (height, width):
            raise ValueError(
                f"the shapes {shapes} do not fill {height} x {width} pixels, the rectangle that is "
                f"said to hold them all"
            )
        # One shape is the plain threat: equal threats have one form.
        object.__setattr__(self, "shapes", () if len(shapes) == 1 else shapes)

    @classmethod
    def from_area(cls, fraction: float, image_size: Size) -> PatchThreat:
        """The smallest square patch that takes at least `fraction` of the image's area."""
        height, width = as_size("image_size", image_size)
        fraction = as_number("fraction", fraction)
        if not 0 < fraction <= 1:
            raise ValueError(
                f"fraction is the patch's share of the image, above 0 and at most 1 "
                f"(0.02 means 2%), but got {fraction}"
            )
        # Decimal arithmetic: 0.01 of 100 x 100 is exactly 100 pixels, a square of 10, not of 11.
        pixels = math.ceil(Fraction(str(fraction)) * height * width)
        side = math.isqrt(pixels - 1) + 1
        if side > min(height, width):
            raise ValueError(
                f"a square of {fraction:.2%} of a {height} x {width} image has sides of {side} "
                f"pixels and does not fit; give PatchThreat(height, width) instead"
            )
        return cls(side, side)

    @classmethod
    def rectangles(
        cls,
        pixels: int,
        ratios: Sequence[float | Fraction],
        image_size: Size,
        count: int = 1,
    ) -> PatchThreat:
        """All rectangles of at most so many pixels, with width / height within a range.

        Only the shapes that lie inside no other one matter, and these are found in whole pixels.

        >>> PatchThreat.rectangles(6, (0.5, 2), image_size=32).shapes
        ((2, 3), (3, 2))
        """
        height, width = as_size("image_size", image_size)
        low, high = (r if isinstance(r, Fraction) else Fraction(str(r)) for r in ratios)
        if pixels < 1 or not 0 < low <= high:
            raise ValueError(
                f"rectangles need at least 1 pixel and a range of width / height above 0, lowest "
                f"first, but got {pixels} pixels and ratios {tuple(map(float, ratios))}"
            )
        widest = {
            tall: min(pixels // tall, math.floor(high * tall), width)
            for tall in range(1, min(height, pixels) + 1)
        }
        shapes = maximal((t, w) for t, w in widest.items() if w >= 1 and w >= low * t)
        if not shapes:
            raise ValueError(
                f"no rectangle of at most {pixels} whole pixels inside {height} x {width} has "
                f"width / height between {float(low):g} and {float(high):g}"
            )
        return cls(max(h for h, _ in shapes), max(w for _, w in shapes), count, shapes)

    def check_fits(self, image_size: Size) -> None:
        """Raise a ValueError if there is no place for the patch in images of this size."""
        height, width = as_size("image_size", image_size)
        if self.height > height or self.width > width:
            raise ValueError(
                f"a {self.single} does not fit into an image of {height} x {width}; "
                f"the patch may have at most {height} x {width} pixels"
            )

    @property
    def single(self) -> PatchThreat:
        """One of the patches alone."""
        return replace(self, count=1)

    @property
    def all_shapes(self) -> Shapes:
        """The shapes that a patch may fill: `shapes`, or the one of `height` x `width`."""
        return self.shapes or ((self.height, self.width),)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make this threat again; one plain patch has a height and a width only."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def __repr__(self) -> str:
        return f"PatchThreat({', '.join(f'{name}={v!r}' for name, v in self.settings.items())})"

    def __str__(self) -> str:
        size = f"{self.height} x {self.width} pixels"
        if self.shapes:
            area = max(height * width for height, width in self.shapes)
            size = f"{len(self.shapes)} shapes within {size}, at most {area:,} pixels each"
        return f"patch of {size}" if self.count == 1 else f"set of {self.count} patches of {size}"


def maximal(shapes: Any) -> Shapes:
    """The shapes (height, width) that lie inside no other one, by height."""
    kept: list[tuple[int, int]] = []
    for shape in sorted(set(shapes), reverse=True):  # the tallest first, of these the widest
        if not kept or shape[1] > kept[-1][1]:
            kept.append(shape)
    return tuple(reversed(kept))
