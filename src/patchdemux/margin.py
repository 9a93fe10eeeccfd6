"""How much a score changes that should not: the numerical margin of a certificate.

A certificate holds for the function that was certified, but batch size, position in the batch and the
order of sums change the last bits of a score. The largest such change that is seen on some views, times
a factor for the views that are not tried, is the margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from patchdemux.batch_size import BatchSize
from patchdemux.engine import Engine, check_images

if TYPE_CHECKING:
    from patchdemux.demux import PatchDemux

BATCH_SIZES = (1, 5, 16)
VIEWS = 24
IMAGES = 4

SAFETY = 4
"""On other views a score may change by more than on those that are tried. EfficientNet-Lite0 on photos:
among all views up to 2 times as much as on 24 of them."""


@dataclass(frozen=True)
class Margin:
    """How far two scores of one class in one and the same view may lie apart.

    It is a measurement on some views of some images, not a proof for all.

    Attributes:
        value: what bounds are moved by, in the units of the scores: `SAFETY` times the largest.
        largest: the largest difference that was seen.
        images, views: on how many images, and on how many masked views of them in total.
        batch_sizes: the views per call of the model that were tried.
        settings: how often each view was scored, in other batches or places; twice in the same.
        runtime, precision: of the classifier, as they were.
    """

    value: float
    largest: float
    images: int
    views: int
    batch_sizes: tuple[int, ...]
    settings: int
    runtime: str
    precision: str

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        return (
            f"{self.value:.3g} in the scores of {self.runtime} in {self.precision}: {SAFETY} times "
            f"the largest difference seen, {self.largest:.3g} ({self.views} masked views of "
            f"{self.images} images, in batches of {sizes})"
        )


def measure_margin(
    demux: PatchDemux,
    images: Tensor,
    *,
    batch_sizes: Sequence[int] | None = None,
    views: int = VIEWS,
    seed: int = 0,
) -> Margin:
    """Score masked views again and again, and find the largest difference of a score.

    Views are those that the defense asks for, in random order. Each is scored in batches of every
    size, twice, at other places of the batch; and once more just as before, for what differs by itself.

    Args:
        demux: the defended classifier; its device, runtime and precision are those measured.
        images: (image, channel, height, width) in [0, 1], of which the first 4 are used.
        batch_sizes: views per call of the model; None: 1, 5, 16 and that of `demux`.
        views: at least so many masked views are scored in total, or as many as fill a batch.
        seed: of the choice of views and places.
    """
    images = check_images(images)[:IMAGES]
    if batch_sizes is None:
        batch_sizes = (*BATCH_SIZES, demux.engine.batch.size)
    random = np.random.default_rng(seed)
    hidden, wanted = views_of(demux, images)
    wanted = random.permutation(wanted)
    sizes = sorted(set(batch_sizes))
    most = min(len(wanted), -(-max(views, *sizes) // len(images)))
    lowest = highest = None
    scored = []
    for size in [*sizes, sizes[-1]]:
        count = min(most, -(-max(views, size) // len(images)))
        engine = Engine(demux.classifier, fill=demux.engine.fill, batch_size=size)
        for shuffled in (False, True):
            order = random.permutation(count) if shuffled else np.arange(count)
            places = random.permutation(len(images)) if shuffled else np.arange(len(images))
            scores = engine.masked_scores(images[places], hidden, wanted[order])
            found = np.full((len(images), most, scores.shape[2]), np.nan)
            found[np.ix_(places, order)] = scores
            lowest = found if lowest is None else np.fmin(lowest, found)
            highest = found if highest is None else np.fmax(highest, found)
        scored.append(engine.batch.size)  # smaller if memory ran out
    assert lowest is not None
    assert highest is not None
    largest = float(np.max(highest - lowest))
    return Margin(
        value=SAFETY * largest,
        largest=largest,
        images=len(images),
        views=len(images) * most,
        batch_sizes=tuple(sorted(set(scored))),
        settings=2 * len(scored),
        runtime=demux.classifier.runtime,
        precision=demux.classifier.precision,
    )


class _FoundError(Exception):
    """Carries the views out of a defense; never seen outside."""

    def __init__(self, hidden: np.ndarray, views: np.ndarray) -> None:
        super().__init__()
        self.hidden, self.views = hidden, views


class _Recorder(Engine):
    """Stops a defense at the first views with something hidden that it asks for."""

    def masked_scores(
        self, images: Tensor, hidden: np.ndarray, views: np.ndarray, *more: Any, **options: Any
    ) -> np.ndarray:
        if hidden.any():
            raise _FoundError(hidden, views)
        return super().masked_scores(images, hidden, views, *more, **options)


def views_of(demux: PatchDemux, images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Masks, and the views that the defense lays over images of this size.

    A defense that hides nothing has one view: the image itself.
    """
    size = demux.engine.batch.fixed or BatchSize.START
    fill = demux.engine.fill
    try:
        demux.defense.bounds(
            _Recorder(demux.classifier, fill=fill, batch_size=size), images[:1], demux.threat
        )
    except _FoundError as found:
        return found.hidden, found.views
    return np.zeros((1, *images.shape[-2:]), bool), np.zeros((1, 1), int)
