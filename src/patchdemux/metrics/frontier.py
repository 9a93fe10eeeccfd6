"""The misses and false alarms that one patch can cause together, at many thresholds in one pass.

An attacker of one image chooses a region, and with it FN[r] misses and FP[r] false alarms. Whatever he
wants, only the regions matter that no other region beats in both: at a threshold, for j = 0, 1, 2, ...
the most alarms of any region with at least j misses. An image has few true labels, so these are few
numbers where FN[r] and FP[r] are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import representable
from patchdemux.inputs import blocks

Grid = Float[np.ndarray, " threshold"]
Choices = UInt[np.ndarray, "image option threshold"]


class Frontier(NamedTuple):
    """What an attacker can choose from; (0, 0) fills the options that he does not have."""

    misses: Choices
    alarms: Choices


class Block(NamedTuple):
    """The choices of some images on a rising grid of thresholds, and their limits between neighbours.

    FN[r] and FP[r] are monotone in the threshold. So anywhere between two neighbours an attacker has
    at most the choices `most`, the misses of the upper threshold with the alarms of the lower one, and
    at least the choices `least`, the other way round.
    """

    at: Frontier
    least: Frontier
    most: Frontier


def frontiers(
    bounds: ScoreBounds, true: Bool[np.ndarray, "image class"], grid: Grid
) -> Iterator[Block]:
    """The choices of all images, block by block; images with equally many labels side by side."""
    _, regions, classes = bounds.upper.shape
    order = true.sum(axis=1).argsort(kind="stable")
    for block in blocks(len(order), regions * (len(grid) + classes)):
        images = order[block]
        onsets = miss_onsets(bounds.lower[images], true[images], grid)
        yield combined(onsets, alarms_above(bounds.upper[images], ~true[images], grid))


def ranked_lower(
    lower: Float[np.ndarray, "image region class"], true: Bool[np.ndarray, "image class"]
) -> Float[np.ndarray, "image region rank"]:
    """The lower bounds of the true labels, sorted in every region; plus infinity beyond them."""
    columns = (~true).argsort(axis=1, kind="stable")[:, : true.sum(axis=1).max()]
    counts = np.take_along_axis(true, columns, axis=1)
    chosen = np.take_along_axis(lower, columns[:, None], axis=2)
    chosen[~np.broadcast_to(counts[:, None], chosen.shape)] = np.inf
    chosen.sort(axis=2)
    return chosen


def ranked_upper(
    upper: Float[np.ndarray, "image region class"], false: Bool[np.ndarray, "image class"]
) -> Float[np.ndarray, "image region class"]:
    """The upper bounds of the false labels, sorted in every region, after minus infinity."""
    ranked = np.where(false[:, None], upper, upper.dtype.type(-np.inf))
    ranked.sort(axis=2)
    return ranked


def miss_onsets(
    lower: Float[np.ndarray, "image region class"],
    true: Bool[np.ndarray, "image class"],
    grid: Grid,
) -> Int[np.ndarray, "image region option"]:
    """Where on the grid a region begins to cause j misses: at its j-th smallest lower bound."""
    ranked = ranked_lower(lower, true)
    onset = np.zeros((*ranked.shape[:2], ranked.shape[2] + 1), np.int64)
    onset[:, :, 1:] = representable(grid, lower.dtype).searchsorted(ranked)
    beyond = np.arange(onset.shape[2]) > true.sum(axis=1, keepdims=True)
    return np.where(beyond[:, None], len(grid), onset)


def alarms_above(
    upper: Float[np.ndarray, "image region class"],
    false: Bool[np.ndarray, "image class"],
    grid: Grid,
) -> UInt[np.ndarray, "image region threshold"]:
    """One more than FP[r] at every threshold of the grid: a histogram on the grid, summed up."""
    images, regions, classes = upper.shape
    cells = len(grid) + 1
    position = representable(grid, upper.dtype).searchsorted(ranked_upper(upper, false))
    position += cells * np.arange(images * regions).reshape(images, regions, 1)
    histogram = np.bincount(position.ravel(), minlength=images * regions * cells)
    below = histogram.reshape(images, regions, cells)[:, :, :-1].cumsum(axis=2)
    above: np.ndarray = (classes + 1 - below).astype(np.min_scalar_type(classes + 1))
    return above


def combined(
    onsets: Int[np.ndarray, "image region option"],
    above: UInt[np.ndarray, "image region threshold"],
) -> Block:
    """For j = 0, 1, 2, ... the most alarms of the regions that cause at least j misses."""
    images, _, thresholds = above.shape
    options = onsets.shape[2]
    onsets = onsets.astype(np.min_scalar_type(thresholds))
    steps = np.arange(thresholds, dtype=onsets.dtype)
    at = np.empty((images, options, thresholds), above.dtype)
    least, most = np.empty_like(at[:, :, 1:]), np.empty_like(at[:, :, 1:])
    for j in range(options):
        caused = (steps >= onsets[:, :, j : j + 1]).view(np.uint8)
        (above * caused).max(axis=1, out=at[:, j])
        (above[:, :, 1:] * caused[:, :, :-1]).max(axis=1, out=least[:, j])
        (above[:, :, :-1] * caused[:, :, 1:]).max(axis=1, out=most[:, j])
    return Block(frontier(at), frontier(least), frontier(most))


def frontier(best: Choices) -> Frontier:
    """Misses and alarms of the options; `best` is one more than the alarms, 0 where there is none."""
    feasible = best > 0
    misses = feasible * np.arange(best.shape[1], dtype=best.dtype)[:, None]
    return Frontier(misses, best - feasible)
