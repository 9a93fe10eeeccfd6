"""What the attacker may do: replace the pixels inside one rectangle, anywhere in the image."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from patchdemux.inputs import as_number

Size = int | Sequence[int]


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


@dataclass(frozen=True)
class PatchThreat:
    """One patch of `height` x `width` pixels of the model's input, with any content, at any place.

    >>> print(PatchThreat.from_area(0.02, 448))
    patch of 64 x 64 pixels
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        height, width = as_size("a patch", (self.height, self.width))
        object.__setattr__(self, "height", height)
        object.__setattr__(self, "width", width)

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

    def __str__(self) -> str:
        return f"patch of {self.height} x {self.width} pixels"
