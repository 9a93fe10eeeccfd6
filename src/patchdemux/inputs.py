"""Checks at the public edge: arrays of the right shape and kind, or an error that says what is wrong.

Everything inside the package may rely on what passed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool

BLOCK = 2**18
"""Numbers handled at a time, so that large arrays need little memory beside themselves."""


def blocks(images: int, numbers: int) -> Iterator[slice]:
    """All images in turn, few enough at a time when each of them takes so many numbers."""
    step = max(1, BLOCK // max(1, numbers))
    return (slice(start, start + step) for start in range(0, images, step))


def as_array(value: Any) -> np.ndarray:
    """A NumPy array from anything array-like, PyTorch tensors on any device included."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has no such type
            value = value.float()
    return np.asarray(value)


def as_scores(name: str, value: Any, dims: str, infinite: float = 0.0) -> np.ndarray:
    """Floating-point scores with the dimensions that `dims` names, such as "image class".

    NaN is never allowed. Infinity is allowed only of the sign of `infinite`: an interval's lower end
    may be minus infinity (nothing is proved), its upper end plus infinity.
    """
    scores = as_array(value)
    if not np.issubdtype(scores.dtype, np.floating):
        raise TypeError(f"{name} must be floating-point scores, but got {scores.dtype}")
    if scores.ndim != len(dims.split()):
        raise ValueError(f"{name} must have the dimensions ({dims}), but got shape {scores.shape}")
    if 0 in scores.shape:
        raise ValueError(f"{name} is empty: ({dims}) has shape {scores.shape}")
    if scores.dtype == np.float16:
        scores = scores.astype(np.float32)
    if any(_bad(scores[block], infinite).any() for block in blocks(len(scores), scores[0].size)):
        bad = _bad(scores, infinite)
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} must be finite, but {int(bad.sum())} of its scores are not, the first of them "
            f"{scores[where]} at ({dims}) = {where}"
        )
    return scores


def _bad(scores: np.ndarray, infinite: float) -> Bool[np.ndarray, ...]:
    """Which scores are not finite, nor infinity of the allowed sign."""
    bad: np.ndarray = ~np.isfinite(scores)
    if infinite and bad.any():
        bad &= scores != math.copysign(math.inf, infinite)
    return bad


def as_targets(value: Any, shape: tuple[int, int]) -> Bool[np.ndarray, "image class"]:
    """Labels as booleans: exactly 0 or 1 for every image and class."""
    targets = as_array(value)
    if targets.shape != shape:
        raise ValueError(
            f"targets must have one 0 or 1 per image and class, shape {shape}, "
            f"but got shape {targets.shape}"
        )
    wrong = (targets != 0) & (targets != 1)
    if wrong.any():
        image, label = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"targets must be 0 or 1, but image {image}, class {label} is {targets[image, label]}"
        )
    return targets.astype(bool)


def as_number(name: str, value: Any) -> float:
    """One number, or an error that says what has to be one."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # the last is PyTorch's, for several numbers
        raise TypeError(f"{name} must be a number, but got {value!r}") from None


def as_threshold(value: Any) -> float:
    """A threshold in the units of the scores: any number but NaN."""
    threshold = as_number("threshold", value)
    if math.isnan(threshold):
        raise ValueError("threshold must be a number, but got NaN")
    return threshold


def logit(probability: float) -> float:
    """The logit of a probability that a person gave as threshold."""
    probability = as_number("threshold", probability)
    if not 0 < probability < 1:
        raise ValueError(
            f"a probability threshold must lie strictly between 0 and 1, but got {probability}"
        )
    return math.log(probability) - math.log1p(-probability)
