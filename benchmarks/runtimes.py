"""Runtimes and precisions: time per masked view, and numerical margin. `python -m benchmarks.runtimes`

All candidates are timed in turn, round after round, in one process and through the engine. Times vary
from machine to machine; ratios of one run are what counts.
"""

from __future__ import annotations

import os
import platform
import statistics
import time

import timm
import torch

from benchmarks.core import IMAGE, MASKS, row
from patchdemux import Classifier, Engine, PatchDemux
from patchdemux.margin import measure_margin
from patchdemux.runtimes import RUNTIMES, available, make_runtime

BATCH_SIZES = (8, 16, 32, 64)
VIEWS = 128
ROUNDS = 3


def milliseconds(classifier: Classifier, image: torch.Tensor, batch_size: int) -> float:
    """Time of one masked view."""
    engine = Engine(classifier, batch_size=batch_size)
    started = time.perf_counter()
    engine.masked_scores(image, MASKS.dense(), MASKS.unions()[:VIEWS])
    return 1e3 * (time.perf_counter() - started) / VIEWS


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("efficientnet_lite0", pretrained=False, num_classes=80)
    plain = Classifier(model, image_size=IMAGE, mean=[0.485, 0.456, 0.406], std=[0.23, 0.23, 0.23])
    image = torch.rand(1, 3, IMAGE, IMAGE)
    made = {pair: make_runtime(plain, *pair) for pair in available(plain)}
    times: dict[tuple[str, str], dict[int, list[float]]] = {
        pair: {size: [] for size in BATCH_SIZES} for pair in made
    }
    for number in range(1 + ROUNDS):
        for pair, classifier in made.items():
            for size in BATCH_SIZES:
                took = milliseconds(classifier, image, size)
                if number:  # the first round exports, compiles and warms up
                    times[pair][size].append(took)
    scores = Engine(plain, batch_size=32).masked_scores(image, MASKS.dense(), MASKS.unions()[:32])
    versions = ", ".join(
        dict.fromkeys(f"{name} {RUNTIMES[name].version.split('-')[0]}" for name, _ in made)
    )
    print(
        f"EfficientNet-Lite0, {IMAGE} x {IMAGE}, 80 classes, random weights; scores reach "
        f"{abs(scores).max():.3g} and vary by {scores.std():.3g}. {os.cpu_count()} cores "
        f"({platform.machine()}), {torch.get_num_threads()} threads, load "
        f"{os.getloadavg()[0]:.1f}; {versions}.\n"
    )
    print(row("runtime", "precision", "batch", "ms per view", "ratio", "margin", "from torch"))
    print(row(*["---"] * 7))
    baseline = min(statistics.median(taken) for taken in times["torch", "float32"].values())
    for (name, precision), classifier in made.items():
        medians = {size: statistics.median(taken) for size, taken in times[name, precision].items()}
        best = min(medians, key=lambda size: medians[size])
        demux = PatchDemux(classifier, MASKS.threat, batch_size=best)
        margin = measure_margin(demux, image)
        difference = getattr(classifier, "difference", 0.0)
        print(
            row(
                name,
                precision,
                str(best),
                f"{medians[best]:.2f}",
                f"{baseline / medians[best]:.2f} x",
                f"{margin.value:.2g}",
                f"{difference:.2g}",
            )
        )


if __name__ == "__main__":
    main()
