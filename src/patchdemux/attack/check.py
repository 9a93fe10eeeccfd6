"""Whether an attack did what a certificate rules out: then the certificate is false."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from patchdemux.bounds import ScoreBounds
from patchdemux.threat import PatchThreat


@dataclass(frozen=True)
class Violation:
    """A score of an attacked image that the bounds of the clean image rule out.

    Attributes:
        image: index of the attacked image.
        label: index of the class.
        row, column: top left corner of the patch.
        regions: those that hold the patch; none if the regions do not cover it, and then the widest
            bounds of any region are what was broken.
        score: the defended score of the attacked image.
        lower, upper: what was proved of it, margin included.
    """

    image: int
    label: int
    row: int
    column: int
    regions: tuple[int, ...]
    score: float
    lower: float
    upper: float


def violations(
    bounds: ScoreBounds,
    attacked: Float[np.ndarray, "image class"],
    places: Int[np.ndarray, "image 2"],
    boxes: Int[np.ndarray, "region 4"] | None,
    threat: PatchThreat,
) -> list[Violation]:
    """Every score outside of what was proved, for every region that holds the patch at once.

    Args:
        bounds: of the clean images, widened by the numerical margin.
        attacked: defended scores of the attacked images.
        places: of the patch in each.
        boxes: the regions; None where they are no boxes.
        threat: the patch.
    """
    found = []
    for image, place in enumerate(places):
        held = holders(boxes, place, threat)
        if held.any():
            low = bounds.lower[image, held].max(axis=0)
            high = bounds.upper[image, held].min(axis=0)
        else:
            low, high = bounds.lower[image].min(axis=0), bounds.upper[image].max(axis=0)
        scores = attacked[image]
        for label in np.flatnonzero((scores < low) | (scores > high)).tolist():
            values = (float(array[label]) for array in (scores, low, high))
            regions = tuple(np.flatnonzero(held).tolist())
            found.append(Violation(image, label, int(place[0]), int(place[1]), regions, *values))
    return found


def holders(
    boxes: Int[np.ndarray, "region 4"] | None, place: Any, threat: PatchThreat
) -> Bool[np.ndarray, " region"]:
    """Which regions hold the whole patch."""
    if boxes is None:
        return np.zeros(1, bool)
    corner = np.asarray(place)
    ends = boxes[:, :2] + boxes[:, 2:]
    inside = (boxes[:, :2] <= corner) & (corner + (threat.height, threat.width) <= ends)
    return np.asarray(inside.all(axis=1))
