"""The paper's algorithms, as pure functions of `ScoreBounds`, 0/1 targets and a threshold.

Thresholds are in the units of the scores, and a label is predicted when its score is *strictly
greater*. Comparisons are exact: a float32 score is compared with the threshold itself, not with the
float32 number nearest to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from patchdemux.bounds import ScoreBounds
from patchdemux.inputs import as_targets, as_threshold

Method = Literal["class", "location", "location-fn", "location-fp"]


@dataclass(frozen=True, eq=False)
class Certificate:
    """What is guaranteed of the predictions at one threshold, whatever the patch shows.

    Attributes:
        tp: per image, at least so many true labels are predicted.
        fp: per image, at most so many false labels are predicted.
        fn: per image, at most so many true labels are missed.
        certified: (image, class) kappa: the label stays right wherever the patch is.
        vulnerable: (image, region, class) not lambda: a patch in the region may turn the label wrong.
    """

    tp: Int[np.ndarray, " image"]
    fp: Int[np.ndarray, " image"]
    fn: Int[np.ndarray, " image"]
    certified: Bool[np.ndarray, "image class"]
    vulnerable: Bool[np.ndarray, "image region class"]


def exceeds(scores: Float[np.ndarray, "*shape"], threshold: float) -> Bool[np.ndarray, "*shape"]:
    """Whether each score is strictly greater than the threshold, exactly, in the scores' own type."""
    return np.asarray(scores > representable(np.array(threshold, np.float64), scores.dtype))


def representable(
    thresholds: Float[np.ndarray, "*shape"], dtype: np.dtype[Any]
) -> Float[np.ndarray, "*shape"]:
    """The largest numbers of a type that are not above the thresholds.

    A score of that type is greater than the threshold exactly when it is greater than this number.
    """
    with np.errstate(over="ignore"):
        nearest = thresholds.astype(dtype)
        below = np.nextafter(nearest, dtype.type(-np.inf))
    return np.where(nearest > thresholds, below, nearest)


def predict(bounds: ScoreBounds, threshold: float) -> Bool[np.ndarray, "image class"]:
    """The defended classifier's labels (Algorithm 1): `defended > threshold`."""
    return exceeds(bounds.defended, as_threshold(threshold))


def vulnerable(
    bounds: ScoreBounds, targets: Any, threshold: float
) -> Bool[np.ndarray, "image region class"]:
    """Where a patch in the region may turn the label wrong: the complement of the paper's lambda.

    A true label may be hidden when its lower bound is not above the threshold; a false label may be
    invented when its upper bound is.
    """
    threshold = as_threshold(threshold)
    true = as_targets(targets, bounds.defended.shape)[:, None]
    return np.where(true, ~exceeds(bounds.lower, threshold), exceeds(bounds.upper, threshold))


def certified(
    bounds: ScoreBounds, targets: Any, threshold: float
) -> Bool[np.ndarray, "image class"]:
    """The certified labels (Algorithm 2, kappa): right wherever the patch is."""
    return np.asarray(~vulnerable(bounds, targets, threshold).any(axis=1))


def certify(
    bounds: ScoreBounds, targets: Any, threshold: float, method: Method = "class"
) -> Certificate:
    """Guaranteed true positives, false positives and false negatives of every image.

    Args:
        bounds: what the defense proved.
        targets: (image, class) 0/1 labels.
        threshold: in the units of the scores.
        method: "class" counts every label that a patch somewhere may turn, as if each label had an
            attacker of its own (Algorithm 2). The others use that the patch is in one region only
            (Algorithm 3): "location" takes the most misses and the most false alarms, each at its
            own region; "location-fn" the region with the most misses, ties to the most false
            alarms; "location-fp" the other way round.
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)}, but got {method!r}")
    targets = as_targets(targets, bounds.defended.shape)
    wrong = vulnerable(bounds, targets, threshold)
    kappa = np.asarray(~wrong.any(axis=1))
    if method == "class":
        fn, fp = (~kappa & targets).sum(axis=1), (~kappa & ~targets).sum(axis=1)
    else:
        misses, alarms = errors_by_region(wrong, targets)
        fn, fp = misses.max(axis=1), alarms.max(axis=1)
        if method == "location-fn":
            fp = np.where(misses == fn[:, None], alarms, 0).max(axis=1)
        elif method == "location-fp":
            fn = np.where(alarms == fp[:, None], misses, 0).max(axis=1)
    return Certificate(targets.sum(axis=1) - fn, fp, fn, kappa, wrong)


def errors_by_region(
    wrong: Bool[np.ndarray, "image region class"], targets: Bool[np.ndarray, "image class"]
) -> tuple[Int[np.ndarray, "image region"], Int[np.ndarray, "image region"]]:
    """FN[r] and FP[r]: the misses and false alarms that one patch in region r can cause."""
    misses = (wrong & targets[:, None]).sum(axis=2)
    return misses, wrong.sum(axis=2) - misses
