"""The runtime of inference on one image at a time: undefended, defended for one label, for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.engine import device_of
from patchdemux.reproduce.entries import NO_MASKS, Experiment
from patchdemux.reproduce.jobs import Job
from patchdemux.reproduce.measure import classifier_of, dataset_of, demux_of

MEDIAN = "median ms"
Tell = Callable[[str, int, int], None]
"""Called with what is timed, the images done and their total."""


class FirstLabel(nn.Module):
    """A classifier of the first label alone; it costs what all labels cost."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(images)[:, :1]
        return scores


def time_inference(
    experiment: Experiment, jobs: Sequence[Job], tell: Tell | None
) -> tuple[list[tuple[str, str, float]], str]:
    """Variant, setting and median milliseconds of each timing; and what was measured, in words."""
    dataset = dataset_of(jobs[0])
    count = min(jobs[0].limit or experiment.images, len(dataset))
    chosen = np.linspace(0, len(dataset) - 1, count).astype(int).tolist()
    classifier = classifier_of(jobs[0], dataset)
    timings: list[tuple[str, str, float]] = []

    def measure(variant: str, setting: str, infer: Callable[[Tensor], object]) -> None:
        images = (dataset[place][None] for place in chosen)
        infer(dataset[chosen[0]][None])  # warms up, and finds a batch size
        seconds = []
        for done, took in enumerate(_times(images, infer), start=1):
            seconds.append(took)
            if tell:
                tell(f"{setting}, {variant}", done, count)
        timings.append((variant, setting, 1000 * median(seconds)))

    measure(NO_MASKS, "undefended", demux_of(classifier, jobs[0]).engine.scores)
    for job in jobs:
        for setting, model in (
            ("single-label", Classifier(FirstLabel(classifier))),
            ("multi-label", classifier),
        ):
            demux = demux_of(model, job)

            def infer(image: Tensor, predict: Callable[..., Tensor] = demux.predict) -> Tensor:
                return predict(image, experiment.threshold).cpu()

            measure(job.variant.name, setting, infer)
    words = (
        f"measured: the median of {count} images, one at a time, in wall-clock time, reading and "
        f"resizing left out, on {device_of(classifier, torch.empty(0)).type}; "
        f"defended is PatchDemux.predict at threshold {experiment.threshold:g}, "
        f"single-label with a classifier of the first class only; undefended is one forward pass"
    )
    return timings, words


def _times(images: Iterator[Tensor], infer: Callable[[Tensor], object]) -> Iterator[float]:
    """Seconds that each image takes; scores come to the CPU, so a GPU has finished by then."""
    for image in images:
        started = time.perf_counter()
        infer(image)
        yield time.perf_counter() - started
