"""Curves of the attackers whose misses and false alarms hang together, on a grid of thresholds.

The attackers of Algorithm 3 with a preference, and the exact worst case of one patch per image, choose
one region per image and with it misses and alarms together. On the grid their counts are exact; between
two neighbours they have limits, because FN[r] and FP[r] are monotone in the threshold. So the average
precision of the curve through *every* threshold is known up to an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from patchdemux.bounds import ScoreBounds
from patchdemux.metrics.exact import ratio
from patchdemux.metrics.frontier import Block, Choices, Frontier, Grid, frontiers

Coupled = Literal["location-fn", "location-fp", "exact"]
Ratios = Float[np.ndarray, " _"]
Totals = Int[np.ndarray, " _"]


@dataclass(frozen=True, eq=False)
class Measured:
    """Precision and recall on a rising grid of thresholds, and their limits between neighbours.

    Between two neighbours, recall lies between `least_recall` and that of the lower threshold.
    """

    precision: Ratios
    recall: Ratios
    least_precision: Ratios
    most_precision: Ratios
    least_recall: Ratios

    def average_precision_range(self, start: float = 0.25) -> tuple[float, float]:
        """Limits of the paper's average precision of every curve through further thresholds.

        Wherever such a curve is between two neighbours, it is within their limits. So its precision
        at a recall is within those of some neighbours between which that recall is possible: a run
        of neighbours, as recall falls along the grid.
        """
        low, high = self.least_recall, self.recall[:-1]
        edges = np.unique(np.concatenate([[start], low[low > start], high[high > start]]))
        first = len(low) - low[::-1].searchsorted(edges[:-1], side="right")
        after = len(high) - high[::-1].searchsorted(edges[1:])
        runs = np.stack([first, after], axis=1).ravel()
        least = np.minimum.reduceat(np.append(self.least_precision, 1.0), runs)[::2]
        most = np.maximum.reduceat(np.append(self.most_precision, 0.0), runs)[::2]
        width = np.diff(edges) / (1 - start)
        return float(width @ least), float(width @ most)


def measure(
    bounds: ScoreBounds, true: Bool[np.ndarray, "image class"], setting: Coupled, grid: Grid
) -> Measured:
    """A coupled setting on a rising grid of thresholds."""
    labels = int(true.sum())
    blocks = frontiers(bounds, true, grid)
    if setting == "exact":
        return exact(list(blocks), labels)
    return preferring(blocks, labels, misses_first=setting == "location-fn")


def preferring(blocks: Iterable[Block], labels: int, misses_first: bool) -> Measured:
    """Algorithm 3's attackers: the most misses, then the most alarms; or the other way round.

    Between two neighbours the preferred error lies between its counts there, `few` and `many`. The
    other error is at most what can come with `few` when the attacker has the most choices, and at
    least what can come with `many` when he has the least.
    """
    order = slice(None) if misses_first else slice(None, None, -1)
    totals = []
    for block in blocks:
        at, least, most = [tuple(choices)[order] for choices in block]
        first = at[0].max(axis=1)
        few = np.minimum(first[:, :-1], first[:, 1:])
        many = np.maximum(first[:, :-1], first[:, 1:])
        counts = (first, second(at, first), few, second(least, many), many, second(most, few))
        totals.append([count.sum(axis=0, dtype=np.int64) for count in counts])
    sums = [np.sum(parts, axis=0) for parts in zip(*totals, strict=True)]
    on_grid, fewest, greatest = sums[0:2][order], sums[2:4][order], sums[4:6][order]
    # An attacker who prefers alarms may leave more labels alone at a lower threshold than at a higher
    # one. A curve needs recall that never falls: take the lower of the two.
    return Measured(
        precision(labels, *on_grid),
        np.minimum.accumulate((labels - on_grid[0]) / labels),
        precision(labels, *greatest),
        precision(labels, *fewest),
        np.minimum.accumulate((labels - greatest[0]) / labels),
    )


def second(
    choices: tuple[Choices, ...], needed: UInt[np.ndarray, "image threshold"]
) -> UInt[np.ndarray, "image threshold"]:
    """The most of the other error among the choices with as much of the preferred one as needed."""
    preferred, other = choices
    most: np.ndarray = (other * (preferred >= needed[:, None])).max(axis=1)
    return most


def precision(labels: int, misses: Totals, alarms: Totals) -> Ratios:
    """Micro precision of a data set with so many true labels."""
    return ratio(labels - misses, labels - misses + alarms)


def exact(blocks: Sequence[Block], labels: int) -> Measured:
    """The exact worst case: the lowest precision, and the lowest recall, of one patch per image.

    Choices of more errors never raise the lowest precision, and choices of fewer never lower it.
    """
    misses = np.sum(
        [block.at.misses.max(axis=1).sum(axis=0, dtype=np.int64) for block in blocks], 0
    )
    recall = (labels - misses) / labels
    return Measured(
        lowest_precision([block.at for block in blocks], labels),
        recall,
        lowest_precision([block.most for block in blocks], labels),
        lowest_precision([block.least for block in blocks], labels),
        recall[1:],
    )


def lowest_precision(frontiers: Sequence[Frontier], labels: int) -> Ratios:
    """Dinkelbach's iteration at all thresholds at once; see `exact.lowest_ratio`.

    At a ratio hits / predicted, the choice with the lowest (labels - misses) * predicted - hits *
    (labels - misses + alarms) is that with the highest misses * (predicted - hits) + alarms * hits.
    All in integers. Without hits the ratio is 0 and falls no further.
    """
    hits = np.ones(frontiers[0].misses.shape[2], np.int64)
    predicted = hits
    while True:
        chosen = [highest(frontier, predicted - hits, hits) for frontier in frontiers]
        misses, alarms = np.sum(chosen, axis=0)
        new_hits, new_predicted = labels - misses, labels - misses + alarms
        lower = new_hits * predicted < hits * new_predicted
        if not lower.any():
            return hits / predicted
        hits = np.where(lower, new_hits, hits)
        predicted = np.where(lower, new_predicted, predicted)


def highest(frontier: Frontier, per_miss: Totals, per_alarm: Totals) -> tuple[Totals, Totals]:
    """Misses and alarms, summed over the images, of the choices with the highest weighted sum.

    Each choice is one integer: the weighted sum, then its misses in the last bits. The alarms are
    what the weighted sum leaves for them; where an alarm weighs nothing they are not counted.
    """
    unit = 2 ** (frontier.misses.shape[1] - 1).bit_length()
    choices = frontier.misses * (per_miss * unit + 1)
    choices += frontier.alarms * (per_alarm * unit)
    best = choices.max(axis=1)
    misses = (best & (unit - 1)).sum(axis=0)
    weighted = (best.sum(axis=0) - misses) // unit
    return misses, (weighted - misses * per_miss) // np.maximum(per_alarm, 1)
