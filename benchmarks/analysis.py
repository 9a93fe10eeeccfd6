"""The analysis of a full-size run: every setting's precision-recall curve, and the published way.

`python -m benchmarks.analysis` measures the curves in a process of its own, so that its peak memory is
theirs (the run's arrays included), and scales the published way up from a few images.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from patchdemux import ScoreBounds, precision_recall_curve
from patchdemux.metrics import SETTINGS

IMAGES, REGIONS, CLASSES = 40_504, 36, 80
"""MS-COCO 2014 val, 6 x 6 masks."""

LABELS = 2.9
"""True labels per image, on average."""

THRESHOLDS = 45
"""In the lists of the published implementation."""

Table = list[list[float]]
Counts = tuple[int, int, int]


def synthetic_run(
    images: int = IMAGES, seed: int = 0
) -> tuple[ScoreBounds, Bool[np.ndarray, "image class"]]:
    """A run like a real one: a patch moves a score far in few regions, hardly in the others.

    Scores are multiples of 1/65,536, so that some are equal.
    """
    rng = np.random.default_rng(seed)
    true = rng.random((images, CLASSES)) < LABELS / CLASSES
    defended = grained(rng.normal(np.where(true, 2.5, -4.5), 1.6).astype(np.float32))
    lower = np.empty((images, REGIONS, CLASSES), np.float32)
    upper = np.empty_like(lower)
    for start in range(0, images, 500):
        block = slice(start, start + 500)
        for bound, sign in ((lower, -1), (upper, 1)):
            shape = bound[block].shape
            scale = np.where(rng.random(shape, np.float32) < 0.08, np.float32(0.9), np.float32(0.1))
            drift = grained(scale * rng.standard_exponential(shape, np.float32))
            bound[block] = defended[block, None] + sign * drift
    return ScoreBounds(defended, defended, lower, upper), true


def grained(scores: Float[np.ndarray, ...]) -> Float[np.ndarray, ...]:
    """Rounded to multiples of 1/65,536."""
    return np.round(scores * 2**16) / 2**16


def measure() -> dict[str, Any]:
    """Every setting's curve of the full-size run: seconds, average precision and its error."""
    bounds, true = synthetic_run()
    started = time.perf_counter()
    ScoreBounds(bounds.clean, bounds.defended, bounds.lower, bounds.upper)
    checks = time.perf_counter() - started
    rows = []
    for setting in SETTINGS:
        started = time.perf_counter()
        curve = precision_recall_curve(bounds, true, setting)
        seconds = time.perf_counter() - started
        points = len(curve.thresholds)
        rows.append((setting, seconds, points, curve.paper_average_precision(), curve.error))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts kibibytes
    return {"checks": checks, "rows": rows, "peak": peak}


def published_way(tables: list[Table], targets: list[int], threshold: float) -> dict[str, Counts]:
    """The counts (TP, FP, FN) of one image in every setting, by loops over classes and mask pairs.

    `tables[c][m][n]` is the score of class c under the masks m and n.
    """
    regions = range(len(tables[0]))
    defended, certified = [], []
    misses, alarms = [0 for _ in regions], [0 for _ in regions]
    for table, label in zip(tables, targets, strict=True):
        defended.append(double_masking(table, threshold) == label)
        robust = [True for _ in regions]
        for m in regions:
            for n in regions:
                if int(table[m][n] > threshold) != label:
                    robust[m] = False
        certified.append(all(robust))
        for r in regions:
            if not robust[r]:
                errors = misses if label else alarms
                errors[r] += 1
    fn, fp = max(misses), max(alarms)
    fn_of_fp_attacker = max(misses[r] for r in regions if alarms[r] == fp)
    fp_of_fn_attacker = max(alarms[r] for r in regions if misses[r] == fn)
    labels = sum(targets)
    return {
        "defended": counted(defended, targets),
        "certified": counted(certified, targets),
        "location": (labels - fn, fp, fn),
        "location-fn": (labels - fn, fp_of_fn_attacker, fn),
        "location-fp": (labels - fn_of_fp_attacker, fp, fn_of_fp_attacker),
    }


def double_masking(table: Table, threshold: float) -> int:
    """Two rounds of masking for one label."""
    masks = range(len(table))
    first = [int(table[m][m] > threshold) for m in masks]
    majority = int(2 * sum(first) > len(first))
    for m in masks:
        if first[m] != majority and all(int(table[m][n] > threshold) == first[m] for n in masks):
            return first[m]
    return majority


def counted(right: list[bool], targets: list[int]) -> Counts:
    """TP, FP and FN, where every label counts as right or wrong."""
    pairs = list(zip(right, targets, strict=True))
    return pairs.count((True, 1)), pairs.count((False, 0)), pairs.count((False, 1))


def published_seconds(images: int = 4, thresholds: tuple[float, ...] = (-3.0, 0.0, 3.0)) -> float:
    """Seconds per image and threshold of the published way, on tables of random scores."""
    rng = np.random.default_rng(0)
    targets = (rng.random((images, CLASSES)) < LABELS / CLASSES).astype(int)
    noise = rng.normal(0, 0.5, (images, CLASSES, REGIONS, REGIONS))
    center = np.where(targets, 2.5, -4.5)[:, :, None, None]
    scores = noise + noise.swapaxes(2, 3) + center
    tables, labels = scores.tolist(), targets.tolist()
    started = time.perf_counter()
    for image in range(images):
        for threshold in thresholds:
            published_way(tables[image], labels[image], threshold)
    return (time.perf_counter() - started) / (images * len(thresholds))


def main() -> None:
    command = [sys.executable, "-m", __spec__.name, "--measure"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured = json.loads(done.stdout)
    print(f"{IMAGES:,} images x {REGIONS} regions x {CLASSES} classes, float32\n")
    print("| curve | seconds | points | average precision | error, at most |")
    print("|---|---|---|---|---|")
    for setting, seconds, points, average_precision, error in measured["rows"]:
        print(f"| {setting} | {seconds:.1f} | {points:,} | {average_precision:.4f} | {error:.4f} |")
    total = sum(seconds for _, seconds, *_ in measured["rows"])
    print(f"| all | {total:.1f} | | | |\n")
    print(
        f"Checking the arrays: {measured['checks']:.1f} s. Peak: {measured['peak'] / 1e9:.2f} GB."
    )
    each = published_seconds()
    published = each * IMAGES * THRESHOLDS
    print(
        f"The published way, at {THRESHOLDS} thresholds: {1e3 * each:.1f} ms per image and threshold, "
        f"{published / 3600:.1f} hours scaled to all images; {published / total:,.0f} x."
    )


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure()))
    else:
        main()
