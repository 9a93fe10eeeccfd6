"""Evaluating a whole data set into a run that can be killed at any moment and resumed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.engine import Engine
from patchdemux.footprint import Footprint
from patchdemux.runs.begin import IMAGES_PER_CHUNK, begin, check_fit, check_footprint, now
from patchdemux.runs.errors import RunError
from patchdemux.runs.fingerprint import Fields, differences, fingerprint
from patchdemux.runs.images import OnError, read_ahead, readable_images
from patchdemux.runs.lock import only_writer
from patchdemux.runs.measure import engine_for, repeatable
from patchdemux.runs.progress import Meter, Report
from patchdemux.runs.run import Run
from patchdemux.runs.store import RunStore, writing


def evaluate(
    demux: PatchDemux,
    dataset: ImageSet,
    path: str | os.PathLike[str],
    *,
    images_per_chunk: int | None = None,
    batch_size: int | None = None,
    model_id: str | None = None,
    on_error: OnError = "stop",
    limit: int | None = None,
    footprint: Footprint | None = None,
    progress: Report | None = None,
) -> Run:
    """Evaluate every image into the run at `path`, or go on with what is there.

    Killed at any moment and called again with the same arguments, it resumes, and the finished
    arrays are bit for bit those of a run that was never interrupted. For that, every chunk is
    evaluated on its own, and the sizes of chunks and batches stay those the run began with.

    Args:
        demux: the defended classifier.
        dataset: images with labels.
        path: folder of the run; its parent must be writable.
        images_per_chunk: images evaluated and stored at a time; None: as the run began, or 16.
        batch_size: views per call of the model. None: as the run began, or as `demux` was given, or
            the fastest, which is searched once and stored.
        model_id: names a model whose weights cannot be seen, such as a plain function; with another
            name, a run is not resumed.
        on_error: at an image that cannot be read, "stop"; or "skip" it, count and record it.
        limit: only the first so many images.
        footprint: the patch on the photos that the threat of `demux` stands for, to be recorded and
            named in reports; made with `Footprint.in_set` of this data set.
        progress: called with a `Status` after every image that is checked and every batch.

    Raises:
        RunError: with what is wrong and what to do. What was stored stays, and can be resumed.
        ImageError: an image cannot be read.
    """
    count = check_fit(demux, dataset, limit)
    if footprint is not None:
        check_footprint(footprint, demux, dataset, limit)
    for name, value in (("images_per_chunk", images_per_chunk), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, but got {value}")
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be one of {get_args(OnError)}, but got {on_error!r}")
    path = Path(os.path.abspath(path))  # so that "." has a name too
    batch_size = batch_size or demux.engine.batch.fixed
    with only_writer(path), repeatable():
        if not _is_free(path):
            store = RunStore.open(path, writable=True)
            begun = store.attributes
            gone = {entry["name"] for entry in begun["left_out"]}
            images = [i for i in range(count) if dataset.names[i] not in gone]
            fields = fingerprint(
                demux,
                dataset,
                images,
                batch_size=batch_size or begun["batch_size"],
                images_per_chunk=images_per_chunk or begun["images_per_chunk"],
                model_id=model_id,
                footprint=footprint,
            )
            _check_same(store, fields)
            with writing(path, int(store.done().sum()), len(images)):
                store.clean()
        else:
            images, left_out = readable_images(dataset, count, on_error, progress)
            chunk = images_per_chunk or IMAGES_PER_CHUNK
            store = begin(
                demux, dataset, path, images, left_out, chunk, batch_size, model_id, footprint
            )
        _evaluate_missing(demux, dataset, images, store, progress)
        if store.attributes["finished"] is None:
            with writing(path, len(images), len(images)):
                store.update(finished=now())
    return Run.open(path)


def _is_free(path: Path) -> bool:
    """Whether a run can begin at `path`: nothing is there, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _check_same(store: RunStore, fields: Fields) -> None:
    """Refuse to go on with a run of something else."""
    changed = differences(store.attributes["fingerprint_fields"], fields)
    if changed:
        raise RunError(
            f"{store.path} holds a run of something else: {'; '.join(changed)}. Give another path "
            f"to start a new run, or what it began with to resume it"
        )


def _evaluate_missing(
    demux: PatchDemux,
    dataset: ImageSet,
    images: list[int],
    store: RunStore,
    progress: Report | None,
) -> None:
    """Evaluate and store all chunks that are not done."""
    done = store.done()
    batch_size, step = store.attributes["batch_size"], store.attributes["images_per_chunk"]
    chunks = [range(start, min(start + step, len(images))) for start in range(0, len(images), step)]
    missing = [chunk for chunk in chunks if not done[chunk.start : chunk.stop].all()]
    stored = len(images) - sum(map(len, missing))
    meter = Meter(stored, len(images), store.attributes["views_per_image"], progress)

    def after_batch(views: int, total: int) -> None:
        if engine.batch.size != batch_size:  # later batches would differ from those of other runs
            raise RunError(
                f"memory ran out with {batch_size} views per batch, the size that the run at "
                f"{store.path} is bound to; free some memory and run this again to resume, or start "
                f"a new run elsewhere with batch_size={engine.batch.size}"
            )
        meter.batch(views, total)

    engine = engine_for(demux, batch_size, after_batch)
    for chunk, pixels in read_ahead(dataset, images, missing):
        bounds = _bounds(demux, engine, pixels, dataset.names[images[chunk.start]])
        with writing(store.path, stored, len(images)):
            store.write(chunk, bounds)
        stored += len(chunk)
        meter.stored(len(chunk))


def _bounds(demux: PatchDemux, engine: Engine, pixels: Tensor, first: str) -> ScoreBounds:
    """Bounds of a chunk, with the undefended scores even where the defense leaves them out."""
    try:
        bounds = demux.defense.bounds(engine, pixels, demux.threat)
        return bounds if bounds.clean is not None else replace(bounds, clean=engine.scores(pixels))
    except ValueError as error:
        raise RunError(f"{error} (image 0 is {first})") from error
