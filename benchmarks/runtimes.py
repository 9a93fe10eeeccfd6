"""Runtimes and precisions: time per masked view, and numerical margin. `python -m benchmarks.runtimes`

All candidates are timed in turn, round after round, in one process and through the engine. Times vary
from machine to machine; ratios of one run are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from benchmarks.core import IMAGE, MASKS, row
from benchmarks.machine import machine
from benchmarks.model import photos, plain_model, told
from patchdemux import Classifier, Engine, PatchDemux
from patchdemux.margin import measure_margin
from patchdemux.runtimes import available, make_runtime

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="of EfficientNet-Lite0; else the shipped ones")
    parser.add_argument("--data", type=Path, help="zip or folder of photos; else random images")
    options = parser.parse_args()
    plain = Classifier(plain_model(options.weights), image_size=IMAGE)
    image = photos(1, IMAGE, options.data)
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
    print(machine(f"EfficientNet-Lite0 at {IMAGE} x {IMAGE}", told(options.weights, options.data)))
    print(f"Scores reach {abs(scores).max():.3g} and vary by {scores.std():.3g}.\n")
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
