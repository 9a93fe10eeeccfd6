"""The paper's own protocol, for reproducing its tables: fixed thresholds and a bisection.

The curves in `curves.py` pass through every threshold and need none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchdemux.bounds import ScoreBounds
from patchdemux.inputs import as_targets, logit
from patchdemux.metrics.curves import Setting, operating_point

# Probabilities, as in the scripts of the published implementation (inspire-group/PatchDEMUX).
PAPER_THRESHOLDS: dict[str, tuple[float, ...]] = {
    "standard": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "high": (0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99),
    "very high": (0.999, 0.9999, 0.99999),
    "mid": (
        *(0.52, 0.54, 0.56, 0.58, 0.62, 0.64, 0.66, 0.68),
        *(0.72, 0.74, 0.76, 0.78, 0.82, 0.84, 0.86, 0.88),
    ),
    "low": (0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05),
}
KEY_RECALLS = (0.25, 0.5, 0.75)
TOLERANCE = 0.005
BISECTION_STEPS = 15


@dataclass(frozen=True)
class PaperRow:
    """One row of the paper's tables; NaN where its thresholds do not reach a recall."""

    precision_at: dict[float, float]
    average_precision: float


def paper_protocol(bounds: ScoreBounds, targets: Any, setting: Setting) -> PaperRow:
    """Precision at 25%, 50% and 75% recall and average precision, measured as in the paper.

    Precision and recall are taken at every threshold of the lists. For each key recall the threshold
    is bisected between its neighbours until one recall within half a point above it and one within
    half a point below it are found, and the precision is linear between those two.
    """
    true = as_targets(targets, bounds.defended.shape)

    def measure(probability: float) -> tuple[float, float]:
        threshold = -np.inf if probability == 0 else logit(probability)
        return operating_point(bounds, true, setting, threshold)

    listed = {p: measure(p) for thresholds in PAPER_THRESHOLDS.values() for p in thresholds}
    precision_at = {recall: _bisect(measure, listed, recall) for recall in KEY_RECALLS}
    start = KEY_RECALLS[0]
    curve = [(recall, precision) for precision, recall in listed.values() if recall > start]
    recall, precision = np.array(sorted([(start, precision_at[start]), *curve])).T
    return PaperRow(precision_at, float(np.trapezoid(precision, recall) / (1 - start)))


def _bisect(
    measure: Callable[[float], tuple[float, float]],
    listed: dict[float, tuple[float, float]],
    target: float,
) -> float:
    """Precision at the target recall, between the two measured recalls within the tolerance."""
    below = [p for p, (_, recall) in listed.items() if recall < target]
    above = [p for p, (_, recall) in listed.items() if recall >= target]
    if not below or not above:
        return np.nan
    high, low = min(below), max(above)  # recall falls as the threshold rises
    under = over = None
    for _ in range(BISECTION_STEPS):
        middle = round((low + high) / 2, 10)
        precision, recall = measure(middle)
        if recall >= target:
            low = middle
        else:
            high = middle
        if over is None and target <= recall < target + TOLERANCE:
            over = (recall, precision)
        if under is None and target - TOLERANCE < recall <= target:
            under = (recall, precision)
        if over and under:
            recalls, precisions = zip(under, over, strict=True)
            return float(np.interp(target, recalls, precisions))
    return np.nan
