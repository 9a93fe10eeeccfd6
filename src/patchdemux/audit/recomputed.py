"""The bounds of some images, computed again in other batches and another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.audit.finding import Finding, places_of
from patchdemux.audit.target import Arrays, Target, apart
from patchdemux.bounds import ScoreBounds
from patchdemux.engine import Engine


class Shuffled(Engine):
    """Runs all views in a random order, so that a view has other company in its batch."""

    random: np.random.Generator

    def masked(
        self, images: Tensor, hidden: Bool[np.ndarray, "mask height width"]
    ) -> Callable[[Int[np.ndarray, "job k"]], Float[np.ndarray, "job class"]]:
        scores_of = super().masked(images, hidden)

        def shuffled(jobs: Int[np.ndarray, "job k"]) -> Float[np.ndarray, "job class"]:
            order = self.random.permutation(len(jobs))
            scores = scores_of(jobs[order])
            back = np.empty_like(scores)
            back[order] = scores
            return back

        return shuffled


def check_again(
    target: Target, stored: Arrays, batch_sizes: Sequence[int], random: np.random.Generator
) -> Iterator[Finding]:
    """Every stored score and bound is what is computed again, up to the margin.

    Args:
        target: the defended classifier and some images.
        stored: clean, defended, lower and upper, as they were computed, without any margin.
        batch_sizes: views per call of the model; all views are computed for each.
        random: the order of the images and of their views.
    """
    demux, images, margin = target.demux, target.images, target.margin
    for size in batch_sizes:
        engine = Shuffled(demux.classifier, fill=demux.engine.fill, batch_size=size)
        engine.random = random
        order = random.permutation(len(images))
        found = demux.defense.bounds(engine, images[order], demux.threat)
        for name, scores in arrays_of(found).items():
            again = np.empty_like(scores)
            again[order] = scores
            before = stored[name]
            if again.shape != before.shape:
                what = f"{name} is stored with shape {before.shape}, but has {again.shape}"
                yield Finding("recomputed", what)
                continue
            for index in places_of(apart(before, again) > margin):
                image, label = index[0], index[-1]
                what = (
                    f"{name} was {before[index]:.6g} and is {again[index]:.6g} in batches of {size}, "
                    f"which is more than the margin {margin:.3g} apart"
                )
                region = index[1] if len(index) == 3 else None
                yield Finding(
                    "recomputed", what, target.names[image], target.class_names[label], region
                )


def arrays_of(bounds: ScoreBounds) -> Arrays:
    """The scores and bounds by name, those that there are."""
    found = {"defended": bounds.defended, "lower": bounds.lower, "upper": bounds.upper}
    return found if bounds.clean is None else {"clean": bounds.clean, **found}
