"""What is audited: some images of a run at a time, and what was stored of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.attack.attack import size_of
from patchdemux.attack.report import steady
from patchdemux.audit.finding import Finding
from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certified
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.inputs import logit
from patchdemux.runs.errors import RunError
from patchdemux.runs.images import read_chunk
from patchdemux.runs.run import Run
from patchdemux.runs.store import SCORES, RunStore

Arrays = dict[str, Float[np.ndarray, "*shape"]]
AT_ONCE = 8  # images in memory at a time


@dataclass(frozen=True, eq=False)
class Target:
    """Some images of a run, and what was stored of them.

    Attributes:
        demux: the defended classifier.
        images, names, class_names, targets: the images and their labels.
        stored: the stored bounds, widened by the margin.
        margin: of the run.
        threshold: a probability; labels that are certified there are attacked.
        folder: where what breaks a certificate is kept; None for nowhere.
    """

    demux: PatchDemux
    images: Tensor
    names: Sequence[str]
    class_names: Sequence[str]
    targets: Bool[np.ndarray, "image class"]
    stored: ScoreBounds
    margin: float
    threshold: float
    folder: Path | None

    @property
    def boxes(self) -> Int[np.ndarray, "region 4"] | None:
        """The regions of the defense."""
        return self.demux.defense.region_boxes(size_of(self.images), self.demux.threat)

    @property
    def safe(self) -> Bool[np.ndarray, "image class"]:
        """The labels that are certified."""
        return certified(self.stored, self.targets, logit(self.threshold))


@dataclass(frozen=True, eq=False)
class Sample:
    """The images of a run that are computed again and attacked, a few in memory at a time.

    Attributes:
        run, demux, dataset: as for `audit`.
        bounds: of the whole run, widened by its margin.
        chosen: which images of the run.
        threshold, folder: as for `audit`.
    """

    run: Run
    demux: PatchDemux
    dataset: ImageSet
    bounds: ScoreBounds
    chosen: Int[np.ndarray, " image"]
    threshold: float
    folder: Path | None

    def __len__(self) -> int:
        """How many parts there are."""
        return -(-len(self.chosen) // AT_ONCE)

    def __getitem__(self, part: int) -> Target:
        """A part of the images, with what was stored of them."""
        own = self.chosen[part * AT_ONCE : (part + 1) * AT_ONCE]
        return Target(
            steady(self.demux),
            read_chunk(self.dataset, self.indices(own)),
            [self.run.names[image] for image in own],
            self.run.class_names,
            self.run.targets[own],
            picked(self.bounds, own),
            self.run.margin,
            self.threshold,
            self.folder,
        )

    def with_stored(self) -> Iterator[tuple[Target, Arrays]]:
        """Every part, with the stored arrays without any margin."""
        store = RunStore.open(self.run.path)
        stored = {name: store.read(name)[self.run.done] for name in SCORES}
        for part in range(len(self)):
            own = self.chosen[part * AT_ONCE : (part + 1) * AT_ONCE]
            yield self[part], {name: array[own] for name, array in stored.items()}

    def other_labels(self) -> Iterator[Finding]:
        """Images whose labels are not those of the data set."""
        for image, index in zip(self.chosen, self.indices(self.chosen), strict=True):
            if (self.run.targets[image] != self.dataset.targets[index].astype(bool)).any():
                yield Finding("stored", "the data set has other labels", self.run.names[image])

    def indices(self, images: Int[np.ndarray, " some"]) -> list[int]:
        """Where images of the run are in the data set."""
        where = {name: index for index, name in enumerate(self.dataset.names)}
        names = [self.run.names[image] for image in images]
        of = f"the run at {self.run.path}"
        if tuple(self.dataset.class_names) != self.run.class_names:
            raise RunError(f"the data set has other classes than {of}")
        if missing := [name for name in names if name not in where]:
            raise RunError(f"the data set has no image {missing[0]!r}, which {of} has")
        return [where[name] for name in names]


def picked(bounds: ScoreBounds, images: Int[np.ndarray, " some"]) -> ScoreBounds:
    """The bounds of these images."""
    clean = None if bounds.clean is None else bounds.clean[images]
    return ScoreBounds(clean, bounds.defended[images], bounds.lower[images], bounds.upper[images])


def apart(
    first: Float[np.ndarray, "*shape"], second: Float[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """How far two scores lie apart, in double precision; equal infinities not at all."""
    wide, other = first.astype(np.float64), second.astype(np.float64)
    same = wide == other
    gap = np.abs(np.where(same, 0.0, wide) - np.where(same, 0.0, other))
    return np.asarray(np.where(np.isnan(gap), np.inf, gap))
