"""The certified core: forward passes, the threshold sweep, and the engine's overhead.

Times vary from machine to machine; ratios of times taken in the same run are what counts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from torch import Tensor, nn

from benchmarks.machine import machine
from patchdemux import (
    Classifier,
    DoubleMasking,
    Engine,
    MaskSet,
    PatchThreat,
    ScoreBounds,
    precision_recall_curve,
)
from patchdemux.metrics import Setting
from patchdemux.models.digit_net import digit_net

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import reference

SWEPT: tuple[Setting, ...] = ("defended", "certified", "location")
IMAGE = 224
MASKS = MaskSet.covering(IMAGE, PatchThreat.from_area(0.02, IMAGE), (6, 6))


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time of some work, after one run to warm up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Counter(nn.Module):
    """A model that only counts the views it is shown."""

    views = 0

    def forward(self, images: Tensor) -> Tensor:
        self.views += len(images)
        return torch.zeros(len(images), 1)


def forward_passes() -> str:
    """Views per image for a certificate at 6 x 6 masks."""
    model = Counter()
    threat = PatchThreat.from_area(0.02, IMAGE)
    DoubleMasking().bounds(Engine(Classifier(model)), torch.zeros(1, 3, IMAGE, IMAGE), threat)
    pairs = len(MASKS) ** 2
    ours = model.views - 1  # one view is the image itself, for the undefended score
    return row(
        "forward passes per image, 6 x 6 masks",
        f"{ours} (+ 1)",
        f"{pairs:,}",
        f"{pairs / ours:.2f} x",
    )


def threshold_sweep(images: int = 32, classes: int = 80, thresholds: int = 45) -> str:
    """Counts of Algorithms 1, 2 and 3, per image and threshold, against literal loops.

    The package's share is everything: bounds from the table, and three curves, which pass through
    every threshold there is and not only through those 45.
    """
    rng = np.random.default_rng(0)
    masks = len(MASKS)
    targets = (rng.random((images, classes)) < 0.04).astype(int)
    center = np.where(targets, 2.0, -4.0) + rng.normal(0, 1, (images, classes))
    noise = rng.normal(0, 0.5, (images, masks, masks, classes))
    scores = (center[:, None, None] + noise + noise.swapaxes(1, 2)).astype(np.float32)

    def package() -> None:
        bounds = ScoreBounds.from_pairs(scores)
        for setting in SWEPT:
            precision_recall_curve(bounds, targets, setting)

    table = [scores[0, :, :, c].tolist() for c in range(classes)]
    some = np.linspace(-4, 4, 5).tolist()

    def literal() -> None:
        for threshold in some:
            reference.demux_inference(table, threshold)
            reference.demux_certification(table, targets[0].tolist(), threshold)
            reference.location_aware(table, targets[0].tolist(), threshold)

    ours = seconds(package) / (images * thresholds)
    loops = seconds(literal) / len(some)
    return row(
        "threshold sweep, per image and threshold",
        f"{1e6 * ours:.1f} µs",
        f"{1e3 * loops:.1f} ms (loops)",
        f"{loops / ours:,.0f} x",
    )


def engine_overhead(name: str, model: nn.Module, size: int, images: int) -> str:
    """Wall time of the engine over (views x the best per-view time of the bare model)."""
    model.eval()
    masks = MaskSet.covering(size, PatchThreat.from_area(0.02, size), (6, 6))
    hidden, unions = masks.dense(), masks.unions()
    photos = torch.rand(images, 3, size, size)
    engine = Engine(Classifier(model))
    views = images * len(unions)
    engine.masked_scores(photos, hidden, unions)  # finds the batch size
    walls, bests = [], []
    for _ in range(3):
        bests.append(
            min(bare_seconds(model, size, batch) for batch in (1, 2, 4, 8, 16, 32, 64, 128))
        )
        walls.append(seconds(lambda: engine.masked_scores(photos, hidden, unions), 3) / views)
    ratio = statistics.median(wall / best for wall, best in zip(walls, bests, strict=True))
    return row(
        f"engine, {name} at {size} (batches of {engine.batch.size}), per view",
        f"{1e3 * statistics.median(walls):.3f} ms",
        f"{1e3 * statistics.median(bests):.3f} ms (bare model at its best batch size)",
        f"{ratio:.2f}",
    )


def bare_seconds(model: nn.Module, size: int, batch: int, views: int = 128) -> float:
    """Seconds per view of the model alone, in batches of the same tensor, in its best memory layout."""
    calls = max(1, views // batch)

    def work(inputs: torch.Tensor) -> None:
        with torch.inference_mode():
            for _ in range(calls):
                model(inputs)

    layouts = (torch.contiguous_format, torch.channels_last)
    inputs = [torch.rand(batch, 3, size, size).to(memory_format=layout) for layout in layouts]
    return min(seconds(partial(work, each), repeats=3) for each in inputs) / (batch * calls)


def row(*cells: str) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    print(machine("Medians"))
    print(row("what", "patchdemux", "compared with", "ratio"))
    print(row(*["---"] * 4))
    print(forward_passes())
    print(threshold_sweep())
    print(engine_overhead("digit network", digit_net(), 62, 4))
    lite = timm.create_model("efficientnet_lite0", pretrained=False, num_classes=80)
    print(engine_overhead("EfficientNet-Lite0", lite, IMAGE, 1))


if __name__ == "__main__":
    main()
