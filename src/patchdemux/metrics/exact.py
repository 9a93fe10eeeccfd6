"""The exact worst case of one patch per image, for a whole data set.

One patch sits in one region of its image, which costs misses and false alarms *together*. The paper's
worst case lets each image suffer the most misses of one region and the most false alarms of another.
Here every image has exactly one region, chosen over the whole data set so that the metric is lowest:
a ratio of two sums with separable choices, which Dinkelbach's iteration solves exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import errors_by_region, vulnerable
from patchdemux.inputs import as_targets

Metric = Literal["precision", "recall", "f1"]
Counts = Int[np.ndarray, "image region"]


@dataclass(frozen=True, eq=False)
class WorstCase:
    """The lowest value that one patch per image can cause, and the regions that cause it."""

    value: float
    regions: Int[np.ndarray, " image"]


def exact_worst_case(
    bounds: ScoreBounds, targets: Any, threshold: float, metric: Metric = "precision"
) -> WorstCase:
    """The lowest micro precision, recall or F1 over all choices of one region per image.

    It is never below the paper's worst case, and the attacker of `regions` attains it against the
    proved bounds. With nothing predicted the precision is 1; without true or predicted labels F1 is 1.
    """
    if metric not in get_args(Metric):
        raise ValueError(f"metric must be one of {get_args(Metric)}, but got {metric!r}")
    true = as_targets(targets, bounds.defended.shape)
    misses, alarms = errors_by_region(vulnerable(bounds, true, threshold), true)
    labels = true.sum(axis=1, keepdims=True)
    hits = labels - misses
    if metric == "precision":
        return lowest_ratio(hits, hits + alarms)
    if metric == "recall":
        return lowest_ratio(hits, np.broadcast_to(labels, hits.shape))
    return lowest_ratio(2 * hits, hits + alarms + labels)


def lowest_ratio(part: Counts, whole: Counts) -> WorstCase:
    """Minimise sum(part) / sum(whole) over one region per image, 0 <= part <= whole (Dinkelbach).

    For a ratio q, every image takes the region that minimises part - q * whole; repeat with the new
    ratio until it no longer falls. All in integers, so the answer is exact. A ratio of nothing to
    nothing is 1.
    """
    part, whole = part.astype(np.int64), whole.astype(np.int64)
    images = np.arange(len(part))
    best = None
    numerator, denominator = 1, 1
    while True:
        regions = (part * denominator - numerator * whole).argmin(axis=1)
        total, of = int(part[images, regions].sum()), int(whole[images, regions].sum())
        if total * denominator >= numerator * of:
            return WorstCase(numerator / denominator, regions if best is None else best)
        numerator, denominator, best = total, of, regions


def ratio(part: Any, whole: Any) -> np.ndarray:
    """Precision of counts; a ratio of nothing to nothing is 1."""
    return np.asarray(np.where(np.equal(whole, 0), 1.0, part / np.maximum(whole, 1)))
