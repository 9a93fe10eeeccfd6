"""Which images withstand a patch best, and which worst."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from patchdemux.bounds import ScoreBounds

Images = Int[np.ndarray, " _"]

DEFINITION = (
    "An image is the more robust, the larger the share of its true labels that are certified and, "
    "among equals, the higher the lowest lower bound of these labels; images without true labels "
    "are not ranked."
)


def ranking(
    bounds: ScoreBounds, targets: Bool[np.ndarray, "image class"], threshold: float
) -> Images:
    """The images with true labels, the least robust first, as `DEFINITION` says.

    Args:
        bounds: what the defense proved.
        targets: the true labels.
        threshold: in the units of the scores.
    """
    share, margin = robustness(bounds, targets, threshold)
    order = np.lexsort((margin, share))
    return np.asarray(order[targets[order].any(axis=1)])


def robustness(
    bounds: ScoreBounds, targets: Bool[np.ndarray, "image class"], threshold: float
) -> tuple[Float[np.ndarray, " image"], Float[np.ndarray, " image"]]:
    """Per image, the share of its true labels that no patch can hide, and their lowest bound."""
    worst = bounds.lower.min(axis=1).astype(np.float64)
    safe = ((worst > threshold) & targets).sum(axis=1)
    margin = np.where(targets, worst, np.inf).min(axis=1) - threshold
    return safe / np.maximum(targets.sum(axis=1), 1), margin


def extremes(ranked: Images, count: int) -> tuple[Images, Images]:
    """The `count` most robust images and the `count` least robust ones; none is in both."""
    best = min(count, len(ranked) // 2)
    return ranked[::-1][:best], ranked[: min(count, len(ranked) - best)]
