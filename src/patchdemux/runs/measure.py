"""Facts about a defended model that only running it tells: its costs and the shape of its answer."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from patchdemux.batch_size import BatchSize
from patchdemux.demux import PatchDemux
from patchdemux.engine import Engine, Progress
from patchdemux.runs.errors import RunError

BATCHES = 3  # full batches of one size that make a timing
LONGEST = 15.0  # seconds; what was seen by then is enough


@dataclass(frozen=True, eq=False)
class Survey:
    """What one image costs, and what it yields."""

    views: int
    regions: int
    boxes: Int[np.ndarray, "region 4"] | None


def engine_for(demux: PatchDemux, batch_size: int | None, progress: Progress) -> Engine:
    """The engine of a defended classifier, with a batch size and a progress of its own."""
    engine = copy.copy(demux.engine)
    engine.batch = BatchSize(batch_size)
    engine.progress = progress
    return engine


def survey(demux: PatchDemux, image: Tensor, classes: int) -> Survey:
    """Views and regions, from the defense if it tells them, else by bounding one image.

    One view is always run: the model must have as many classes as the data set.
    """
    counted = 0

    def count(done: int, total: int) -> None:
        nonlocal counted
        counted += total if done == total else 0

    engine = engine_for(demux, demux.engine.batch.fixed, count)
    scores = engine.scores(image[None])
    if scores.shape[1] != classes:
        raise RunError(
            f"the model has {scores.shape[1]} classes, but the data set has {classes}: "
            f"they must be the same classes in the same order"
        )
    height, width = image.shape[-2:]
    views = demux.defense.views((height, width), demux.threat)
    boxes = demux.defense.region_boxes((height, width), demux.threat)
    regions = demux.defense.regions((height, width), demux.threat)
    if views is not None and regions is not None:
        return Survey(views, regions, boxes)
    counted = 0
    bounds = demux.defense.bounds(engine, image[None], demux.threat)
    return Survey(views or counted, bounds.lower.shape[1], boxes)


@dataclass(frozen=True)
class Timing:
    """A batch size, and what a view costs with it."""

    batch_size: int
    seconds_per_view: float


class _EnoughError(Exception):
    """Ends the timing from inside; never seen outside."""


def time_views(demux: PatchDemux, images: Tensor, batch_size: int | None) -> Timing:
    """Run real views of the images for a while, without a batch size until the fastest is found.

    The engine tries every size twice while it searches for one. So three full batches of one size
    mean that the search has ended; on a slow machine it is cut short.
    """
    times: dict[int, list[float]] = {}  # seconds per view, of full batches of each size
    in_a_row = size = before = 0
    begun = started = time.perf_counter()

    def note(done: int, total: int) -> None:
        nonlocal in_a_row, size, before, started
        views, now = done - before, time.perf_counter()
        if views == size or done == total == views:  # or all views fit into one batch
            times.setdefault(views, []).append((now - started) / views)
            in_a_row += views == size
        if in_a_row == BATCHES or (now - begun > LONGEST and len(times.get(size, ())) > 1):
            raise _EnoughError
        if engine.batch.size != size:
            in_a_row = 0
        before = 0 if done == total else done
        size, started = engine.batch.size, now

    engine = engine_for(demux, batch_size, note)
    size = engine.batch.size
    with suppress(_EnoughError):
        demux.defense.bounds(engine, images, demux.threat)
    found = engine.batch.size
    if in_a_row < BATCHES and batch_size is None:  # the search was cut short
        found = min(times, key=lambda tried: min(times[tried]))
    return Timing(found, median(times.get(found) or min(times.values(), key=min)))


@contextmanager
def repeatable() -> Iterator[None]:
    """cuDNN chooses its algorithms by rule, not by a race that another process could lose."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
