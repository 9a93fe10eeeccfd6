"""What must hold of a run as it lies on disk, whatever the model was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from patchdemux.audit.finding import Finding, places_of
from patchdemux.bounds import ScoreBounds
from patchdemux.defenses import Defense, DoubleMasking
from patchdemux.metrics.curves import Setting, operating_point, precision_recall_curve
from patchdemux.runs.run import Run
from patchdemux.runs.store import SCORES, RunStore
from patchdemux.threat import PatchThreat

ORDER: tuple[Setting, ...] = ("certified", "location", "exact", "defended")
"""At every threshold each of them has at most the recall and the precision of the next: each allows the
attacker less. The defended score is what an attacker gets who changes nothing."""

THRESHOLDS = 9


def uncovered(
    boxes: Int[np.ndarray, "region 4"], image_size: tuple[int, int], shape: tuple[int, int]
) -> tuple[int, int] | None:
    """The first place (top, left) of a patch that lies inside no box; None if there is none.

    Written anew and from the definition, as a check of `MaskSet` and not a use of it.
    """
    (height, width), (tall, wide) = image_size, shape
    lefts = np.arange(width - wide + 1)
    starts, ends = boxes[:, 1, None], boxes[:, 1, None] + boxes[:, 3, None]
    across = (starts <= lefts) & (lefts + wide <= ends)
    for top in range(height - tall + 1):
        down = (boxes[:, 0] <= top) & (top + tall <= boxes[:, 0] + boxes[:, 2])
        held = across[down].any(axis=0)
        if not held.all():
            return top, int(lefts[~held][0])
    return None


def check_coverage(run: Run, defense: Defense) -> Iterator[Finding]:
    """Every place of the patch lies inside a stored region, and the regions are the defense's."""
    size = tuple(run.attributes["image_size"])
    threat: PatchThreat = run.threat
    own = defense.region_boxes(size, threat)
    stored = run.boxes
    if footprint := run.footprint:
        needed = footprint.threat
        if needed.height > threat.height or needed.width > threat.width:
            yield Finding("coverage", f"a {footprint.patch} needs a {needed}, not a {threat}")
    if (stored is None) != (own is None):
        yield Finding("coverage", "regions are stored, or proved by the defense, but not both")
    if stored is None:
        return
    for shape in threat.all_shapes:
        if (hole := uncovered(stored, size, shape)) is not None:
            tall, wide = shape
            yield Finding(
                "coverage",
                f"a patch of {tall} x {wide} pixels with its top left corner at row {hole[0]}, "
                f"column {hole[1]} lies inside no stored region",
            )
    if own is not None and len(own) != len(stored):
        yield Finding(
            "coverage", f"{len(stored)} regions are stored, but the defense has {len(own)}"
        )
    elif own is not None:
        for region in np.flatnonzero((own != stored).any(axis=1)).tolist():
            yield Finding(
                "coverage",
                f"the stored box {stored[region].tolist()} is not that of the defense, "
                f"{own[region].tolist()} (top, left, height, width)",
                region=region,
            )


def check_arrays(run: Run, defense: Defense) -> Iterator[Finding]:
    """Scores are finite where they must be, and every interval holds the defended score."""
    store = RunStore.open(run.path)
    clean, defended, lower, upper = (store.read(name)[run.done] for name in SCORES)
    for name, scores in (("clean", clean), ("defended", defended)):
        for image, label in places_of(~np.isfinite(scores)):
            what = f"the {name} score is {scores[image, label]}"
            yield Finding("stored", what, run.names[image], run.class_names[label])
    guard = defense.guard if isinstance(defense, DoubleMasking) else None
    for name, bound, sign in (("lower", lower, -1), ("upper", upper, 1)):
        # Minus (plus) infinity says that nothing is proved; a guard of both sides proves something.
        nothing = (bound == sign * np.inf) & (guard != "both")
        for image, region, label in places_of(~(np.isfinite(bound) | nothing)):
            what = f"the {name} bound is {bound[image, region, label]}"
            yield Finding("stored", what, run.names[image], run.class_names[label], region)
    own = defended[:, None]
    for image, region, label in places_of((lower > own) | (upper < own)):
        low, high = lower[image, region, label], upper[image, region, label]
        what = (
            f"the defended score {defended[image, label]:.6g} is not within [{low:.6g}, {high:.6g}]"
        )
        yield Finding("stored", what, run.names[image], run.class_names[label], region)
    floor, ceiling = lower.max(axis=1), upper.min(axis=1)
    for image, label in places_of(floor > ceiling):
        region = int(lower[image, :, label].argmax())
        what = (
            f"the floor {floor[image, label]:.6g} is above the ceiling {ceiling[image, label]:.6g}"
        )
        yield Finding("stored", what, run.names[image], run.class_names[label], region)


def check_curves(bounds: ScoreBounds, targets: np.ndarray) -> Iterator[Finding]:
    """Curves run the right way, and none lies above one that allows the attacker less."""
    for setting in ("undefended", *ORDER):
        curve = precision_recall_curve(bounds, targets, setting)
        if (np.diff(curve.recall) < 0).any():
            yield Finding("curves", f"the recall of {setting} falls while the threshold falls")
        if (np.diff(curve.thresholds) > 0).any():
            yield Finding("curves", f"the thresholds of {setting} do not fall")
        for name in ("precision", "recall"):
            figures = getattr(curve, name)
            if not ((figures >= 0) & (figures <= 1)).all():
                yield Finding("curves", f"a {name} of {setting} is not within 0 and 1")
    for threshold in thresholds_of(bounds.defended).tolist():
        points = [operating_point(bounds, targets, setting, threshold) for setting in ORDER]
        for i in range(len(ORDER) - 1):
            for name, less, more in zip(("precision", "recall"), *points[i : i + 2], strict=True):
                if less > more:
                    what = f"at {threshold:.6g} the {name} of {ORDER[i]} is {less:.6g}, "
                    yield Finding("curves", f"{what}above {more:.6g} of {ORDER[i + 1]}")


def thresholds_of(defended: Float[np.ndarray, "image class"]) -> Float[np.ndarray, " point"]:
    """Scores at equal steps of their ranks, and 0, which is a probability of one half."""
    ranks = np.quantile(defended, np.linspace(0, 1, THRESHOLDS), method="nearest")
    return np.unique([0.0, *ranks])
