"""What people type as the values of options, and what it means."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from patchdemux.footprint import SourcePatch
from patchdemux.threat import PatchThreat

SOURCE = "@source"

PATCH_FORMS = (
    "a share of the image (2% or 0.02, as a square), or pixels of the model's input (64 or 64px, "
    "or 64x32 for height x width); of the photo itself with @source, as 64px@source or 2%@source"
)


def as_pair(option: str, text: str) -> tuple[int, int]:
    """Two whole numbers: 6 means 6 and 6, 6x4 means 6 and 4."""
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip().lower())
    if found is None:
        raise ValueError(f"{option} must be a whole number or two, as 6 or 6x4, but got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def as_numbers(option: str, text: str) -> list[float]:
    """One number, or several with commas between."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be as 0.5 or 0.5,0.4,0.4, but got {text!r}") from None


def as_setting(text: str) -> tuple[str, Any]:
    """Name and value of a setting; what is no JSON is text.

    >>> as_setting("masks=[6, 4]"), as_setting("center=median")
    (('masks', [6, 4]), ('center', 'median'))
    """
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise ValueError(f"--set must be as masks=[6,4] or center=median, but got {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def as_threat(patch: str, image_size: tuple[int, int], option: str = "--patch") -> PatchThreat:
    """The patch that a person means: whole numbers are pixels, all others a share of the image.

    >>> print(as_threat("2%", (448, 448)), "and", as_threat("64x32px", (448, 448)))
    patch of 64 x 64 pixels and patch of 64 x 32 pixels
    """
    size = as_sides_or_share(patch, option)
    if patch.strip().lower().endswith(SOURCE):
        raise ValueError(f"{option} {patch} is on photos, but there are none here")
    return (
        PatchThreat.from_area(size, image_size) if isinstance(size, float) else PatchThreat(*size)
    )


def as_source_patch(patch: str, jpeg: str | None, option: str = "--patch") -> SourcePatch | None:
    """The patch on the photo that a person means; None where it is one on the input.

    >>> print(as_source_patch("64x32px@source", "4:2:0"))
    patch of 64 x 32 pixels of the photo, put there before its JPEG compression (4:2:0)
    """
    size = as_sides_or_share(patch, option)
    if not patch.strip().lower().endswith(SOURCE):
        if jpeg is not None:
            raise ValueError(f"--jpeg needs a patch on the photo, as {option} {patch}{SOURCE}")
        return None
    if isinstance(size, float):
        return SourcePatch(share=size, jpeg=jpeg)
    return SourcePatch(*size, jpeg=jpeg)


def as_sides_or_share(patch: str, option: str) -> tuple[int, int] | float:
    """Height and width, or a share of the area, whatever it is of."""
    text = patch.strip().lower().removesuffix(SOURCE)
    if pixels := re.fullmatch(r"(\d+)(?:x(\d+))?(?:px)?", text):
        return int(pixels[1]), int(pixels[2] or pixels[1])
    if share := re.fullmatch(r"(\d*\.?\d+)(%?)", text):
        number = Decimal(share[1])
        return float(number / 100 if share[2] else number)
    raise ValueError(f"{option} must be {PATCH_FORMS}, but got {patch!r}")
