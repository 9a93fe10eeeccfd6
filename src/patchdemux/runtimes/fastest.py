"""Which runtime is the fastest on this machine, by a short timing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.engine import Engine
from patchdemux.masks import MaskSet
from patchdemux.runtimes.base import PRECISIONS
from patchdemux.runtimes.choose import available, make_runtime
from patchdemux.threat import PatchThreat

BATCH_SIZES = {"cpu": (8, 32), "gpu": (32, 128)}
ROUNDS = 3  # taken in turn, so that a busy moment does not hit one candidate only


@dataclass(frozen=True)
class Fastest:
    """What a timing of runtimes found.

    Attributes:
        classifier: the classifier, run by the fastest.
        seconds: per runtime and precision, of one view at the best batch size; the fastest first.
        refused: the runtimes that cannot run this model, with the reason.
    """

    classifier: Classifier
    seconds: dict[tuple[str, str], float]
    refused: dict[tuple[str, str], str]

    @property
    def runtime(self) -> str:
        return self.classifier.runtime

    @property
    def precision(self) -> str:
        return self.classifier.precision

    def __str__(self) -> str:
        (first, best), *others = (
            (f"{name} {precision}", f"{1e3 * seconds:.3g} ms")
            for (name, precision), seconds in self.seconds.items()
        )
        slower = ", ".join(f"{name} {time}" for name, time in others)
        return f"{first}: {best} per view" + (f" ({slower})" if slower else "")


def fastest(
    classifier: Classifier,
    image: Tensor,
    candidates: Sequence[tuple[str, str]] | None = None,
    *,
    precision: str | None = "float32",
) -> Fastest:
    """Time runtimes on masked views of an image, through the engine, and take the fastest.

    Args:
        classifier: what to run.
        image: (channel, height, width) in [0, 1].
        candidates: runtimes and precisions; None: all that are installed, but for `compile` on the
            CPU, which takes a minute to begin.
        precision: of the candidates, where those are not given; None: any.
    """
    on_gpu = any(weights.is_cuda for weights in classifier.parameters())
    sizes = BATCH_SIZES["gpu" if on_gpu else "cpu"]
    if candidates is None:
        candidates = [
            (name, offered)
            for name, offered in available(classifier)
            if offered in (PRECISIONS if precision is None else (precision,))
            and (on_gpu or name != "compile")
        ]
    hidden, views = timing_views(image, 2 * sizes[-1])
    made: dict[tuple[str, str], Classifier] = {}
    refused: dict[tuple[str, str], str] = {}
    for name, asked in candidates:
        try:
            made[name, asked] = make_runtime(classifier, name, asked)
            Engine(made[name, asked], batch_size=sizes[0]).scores(image[None])
        except (ImportError, TypeError, ValueError, RuntimeError) as error:
            made.pop((name, asked), None)
            refused[name, asked] = str(error)
    if not made:
        raise ValueError(f"no runtime can run this model: {refused}")
    seconds = dict.fromkeys(made, float("inf"))
    for _ in range(ROUNDS):
        for key, candidate in made.items():
            for size in sizes:
                started = time.perf_counter()
                Engine(candidate, batch_size=size).masked_scores(image[None], hidden, views)
                took = (time.perf_counter() - started) / len(views)
                seconds[key] = min(seconds[key], took)
    ranked = dict(sorted(seconds.items(), key=lambda entry: entry[1]))
    return Fastest(made[next(iter(ranked))], ranked, refused)


def timing_views(image: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Some of the doubly masked views of an image against a small patch, as the engine takes them."""
    height, width = image.shape[-2:]
    threat = PatchThreat(max(1, height // 8), max(1, width // 8))
    masks = MaskSet.covering((height, width), threat, (4, 4))
    unions = masks.unions()
    return masks.dense(), unions[np.linspace(0, len(unions) - 1, count).astype(int)]
