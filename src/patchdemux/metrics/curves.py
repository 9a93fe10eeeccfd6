"""Precision-recall curves at every threshold, and the averages read off them.

Every certified curve is an ordinary precision-recall curve of pseudo-scores: give each true label a
positive pseudo-score and each false label a negative one such that TP(t) and FP(t) are the numbers of
them above t. The attackers with a preference and the exact bound couple the two errors and are measured
on a grid of thresholds (`coupled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certify, exceeds
from patchdemux.inputs import as_targets, as_threshold, blocks
from patchdemux.metrics.coupled import Coupled, measure
from patchdemux.metrics.exact import exact_worst_case, ratio
from patchdemux.metrics.frontier import ranked_lower, ranked_upper

Setting = Literal[
    "undefended", "defended", "certified", "location", "location-fn", "location-fp", "exact"
]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
COUPLED: tuple[Coupled, ...] = get_args(Coupled)

Scores = Float[np.ndarray, " _"]


@dataclass(frozen=True, eq=False)
class Curve:
    """Micro precision and recall (all images and classes pooled), thresholds falling.

    Recall never falls along the curve, so its first point is the highest threshold. Precision is 1
    where nothing is predicted. A curve through every threshold has error 0; with fewer, the paper's
    average precision differs from that through every threshold by at most `error`.
    """

    thresholds: Float[np.ndarray, " point"]
    precision: Float[np.ndarray, " point"]
    recall: Float[np.ndarray, " point"]
    error: float = 0.0

    def average_precision(self) -> float:
        """The usual one: the mean, over true labels, of the precision at which each is reached."""
        return float(np.diff(self.recall, prepend=0.0) @ self.precision)

    def paper_average_precision(self, start: float = 0.25) -> float:
        """The paper's: the area between 25% and 100% recall (trapezoids), divided by 0.75.

        A recall that is never reached counts with precision 0.
        """
        beyond = int(np.searchsorted(self.recall, start, side="right"))
        recall = np.concatenate([[start], self.recall[beyond:]])
        precision = np.concatenate([[self._at(start, beyond)], self.precision[beyond:]])
        return float(np.trapezoid(precision, recall) / (1 - start))

    def precision_at(self, recall: float) -> float:
        """Precision where the falling threshold first reaches `recall`, linear between points."""
        return self._at(recall, int(np.searchsorted(self.recall, recall)))

    def _at(self, recall: float, after: int) -> float:
        """Linear between the points `after - 1` and `after`; 0 beyond the curve's end."""
        if after == len(self.recall):
            return 0.0
        near = slice(max(after - 1, 0), after + 1)
        return float(np.interp(recall, self.recall[near], self.precision[near]))


def pseudo_scores(bounds: ScoreBounds, targets: Any, setting: Setting) -> tuple[Scores, Scores]:
    """Pseudo-scores of the true and of the false labels, all images pooled.

    TP(t) is the number of the first that are above t, FP(t) the number of the second, at every t:
    the plain scores without an attack; the extreme bounds over all regions (Algorithm 2); and for
    the location-aware worst case (Algorithm 3) the j-th pseudo-score of an image is the least j-th
    smallest lower bound (greatest j-th largest upper bound) of any region, because the attacker
    causes j misses exactly when some region has j lower bounds at or below the threshold.
    """
    check_setting(setting)
    true = as_targets(targets, bounds.defended.shape)
    if setting == "undefended" or setting == "defended":
        scores = _plain_scores(bounds, setting)
        return scores[true], scores[~true]
    if setting == "certified":
        return bounds.lower.min(axis=1)[true], bounds.upper.max(axis=1)[~true]
    if setting == "location":
        parts = [
            _located(bounds.lower[block], bounds.upper[block], true[block])
            for block in blocks(len(true), bounds.lower[0].size)
        ]
        positive, negative = zip(*parts, strict=True)
        return np.concatenate(positive), np.concatenate(negative)
    raise ValueError(f"{setting!r} couples misses and false alarms and has no pseudo-scores")


def check_setting(setting: str) -> None:
    """The setting is among those that exist."""
    if setting not in SETTINGS:
        raise ValueError(f"setting must be one of {SETTINGS}, but got {setting!r}")


def _located(
    lower: Float[np.ndarray, "image region class"],
    upper: Float[np.ndarray, "image region class"],
    true: Bool[np.ndarray, "image class"],
) -> tuple[Scores, Scores]:
    """The location-aware pseudo-scores of some images."""
    positive = ranked_lower(lower, true).min(axis=1)
    negative = ranked_upper(upper, ~true).max(axis=1)
    labels = true.sum(axis=1, keepdims=True)
    return (
        positive[np.arange(positive.shape[1]) < labels],
        negative[np.arange(negative.shape[1]) >= labels],
    )


def precision_recall_curve(
    bounds: ScoreBounds, targets: Any, setting: Setting, points: int = 512
) -> Curve:
    """The micro precision-recall curve of a data set.

    Args:
        bounds: what the defense proved.
        targets: (image, class) 0/1 labels, at least one of them 1.
        setting: "undefended", "defended", "certified" (Algorithm 2) and "location" (Algorithm 3,
            worst case) are exact at every threshold. "location-fn", "location-fp" (its attackers
            with a preference) and "exact" (the true worst case of one patch per image) are exact
            too, but on a grid of thresholds; the curve's `error` bounds what the grid leaves out.
        points: the most thresholds of the grid: pseudo-scores of "location" at equal steps of its
            recall, and minus infinity.
    """
    true = as_targets(targets, bounds.defended.shape)
    if not true.any():
        raise ValueError("a precision-recall curve needs at least one true label")
    if setting not in COUPLED:
        return curve_of(*pseudo_scores(bounds, true, setting))
    located = curve_of(*pseudo_scores(bounds, true, "location"))
    grid = _thin(located, points)[::-1]
    measured = measure(bounds, true, setting, grid)
    curve = Curve(grid[::-1], measured.precision[::-1], measured.recall[::-1])
    least, most = measured.average_precision_range()
    area = curve.paper_average_precision()
    return replace(curve, error=max(area - least, most - area, 0.0))


def curve_of(positive: Scores, negative: Scores) -> Curve:
    """The curve through every threshold at which the count of positives or negatives changes."""
    thresholds = np.unique(np.concatenate([positive, negative, [-np.inf]]))[::-1]
    tp = len(positive) - np.searchsorted(np.sort(positive), thresholds, side="right")
    fp = len(negative) - np.searchsorted(np.sort(negative), thresholds, side="right")
    return Curve(thresholds.astype(np.float64), ratio(tp, tp + fp), tp / len(positive))


def _thin(curve: Curve, points: int) -> Float[np.ndarray, " point"]:
    """At most `points` thresholds of the curve, at equal steps of recall, and its last one."""
    if points < 2:
        raise ValueError(f"points must be at least 2, but got {points}")
    last = len(curve.thresholds) - 1
    if last < points:
        return curve.thresholds
    steps = np.linspace(curve.recall[0], curve.recall[-1], points - 1)
    thresholds: np.ndarray = curve.thresholds[np.unique([*curve.recall.searchsorted(steps), last])]
    return thresholds


def operating_point(
    bounds: ScoreBounds, targets: Any, setting: Setting, threshold: float
) -> tuple[float, float]:
    """Micro precision and recall of any setting at one threshold, from the paper's algorithms."""
    check_setting(setting)
    true = as_targets(targets, bounds.defended.shape)
    if setting == "exact":
        precision = exact_worst_case(bounds, true, threshold, "precision").value
        return precision, exact_worst_case(bounds, true, threshold, "recall").value
    if setting == "undefended" or setting == "defended":
        predicted = exceeds(_plain_scores(bounds, setting), as_threshold(threshold))
        tp, fp = int((predicted & true).sum()), int((predicted & ~true).sum())
    else:
        counts = certify(bounds, true, threshold, "class" if setting == "certified" else setting)
        tp, fp = int(counts.tp.sum()), int(counts.fp.sum())
    return float(ratio(tp, tp + fp)), float(tp / true.sum())


def _plain_scores(
    bounds: ScoreBounds, setting: Literal["undefended", "defended"]
) -> Float[np.ndarray, "image class"]:
    """The scores of the two settings without an attack."""
    scores = bounds.defended if setting == "defended" else bounds.clean
    if scores is None:
        raise ValueError("the undefended curve needs the clean scores, which these bounds lack")
    return scores


def average_precision_per_class(
    bounds: ScoreBounds, targets: Any, setting: Setting
) -> Float[np.ndarray, " class"]:
    """The usual average precision of each class; NaN for a class without a true label.

    Certified values hold against an attacker who aims at that one class ("certified" only: the
    location-aware settings share one patch among the classes and say nothing of a single one).
    """
    if setting not in ("undefended", "defended", "certified"):
        raise ValueError(
            f'per-class average precision exists for "undefended", "defended" and "certified", '
            f"but not for {setting!r}"
        )
    true = as_targets(targets, bounds.defended.shape)
    if setting == "certified":
        positive, negative = bounds.lower.min(axis=1), bounds.upper.max(axis=1)
    else:
        positive = negative = _plain_scores(bounds, setting)
    columns = zip(positive.T, negative.T, true.T, strict=True)
    return np.array(
        [curve_of(p[y], n[~y]).average_precision() if y.any() else np.nan for p, n, y in columns]
    )


def mean_average_precision(bounds: ScoreBounds, targets: Any, setting: Setting) -> float:
    """mAP: the mean over the classes that have a true label."""
    per_class = average_precision_per_class(bounds, targets, setting)
    if np.isnan(per_class).all():
        raise ValueError("mean average precision needs at least one true label")
    return float(np.nanmean(per_class))
