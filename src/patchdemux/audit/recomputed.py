"""The bounds of some images, computed again in other batches and another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.audit.finding import Finding, places_of
from patchdemux.bounds import ScoreBounds
from patchdemux.demux import PatchDemux
from patchdemux.engine import Engine

Arrays = dict[str, Float[np.ndarray, "..."]]


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
    demux: PatchDemux,
    images: Tensor,
    stored: Arrays,
    margin: float,
    batch_sizes: Sequence[int],
    names: Sequence[str],
    class_names: Sequence[str],
    random: np.random.Generator,
) -> Iterator[Finding]:
    """Every stored score and bound is what is computed again, up to the margin.

    Args:
        demux: the defended classifier.
        images, names: those of the stored arrays.
        stored: clean, defended, lower and upper, as they were computed, without any margin.
        margin: of the run.
        batch_sizes: views per call of the model; all views are computed for each.
        class_names: names of the classes.
        random: the order of the images and of their views.
    """
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
                yield Finding("recomputed", what, names[image], class_names[label], region)


def arrays_of(bounds: ScoreBounds) -> Arrays:
    """The scores and bounds by name, those that there are."""
    found = {"defended": bounds.defended, "lower": bounds.lower, "upper": bounds.upper}
    return found if bounds.clean is None else {"clean": bounds.clean, **found}


def apart(
    first: Float[np.ndarray, "*shape"], second: Float[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """How far two scores lie apart, in double precision; equal infinities not at all."""
    wide, other = first.astype(np.float64), second.astype(np.float64)
    same = wide == other
    gap = np.abs(np.where(same, 0.0, wide) - np.where(same, 0.0, other))
    return np.asarray(np.where(np.isnan(gap), np.inf, gap))
