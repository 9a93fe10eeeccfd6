"""Beginning a run: everything is settled, checked and recorded that must not change later."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import patchdemux
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.footprint import Footprint
from patchdemux.margin import BATCH_SIZES, measure_margin
from patchdemux.runs.errors import RunError
from patchdemux.runs.fingerprint import digest, fingerprint
from patchdemux.runs.images import read_chunk
from patchdemux.runs.measure import survey, time_views
from patchdemux.runs.rebuild import defense_record
from patchdemux.runs.store import RunStore

IMAGES_PER_CHUNK = 16
"""A kill loses the present chunk: about 10,000 views. 40,504 images make 12,660 files."""


def check_fit(demux: PatchDemux, dataset: ImageSet, limit: int | None) -> int:
    """The number of images to evaluate, once data set and classifier fit together."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, but got {limit}")
    if not len(dataset):
        raise RunError("the data set has no images")
    if len(set(dataset.names)) < len(dataset):
        raise RunError("the names of the images are not unique, so results could not be told apart")
    shape = len(dataset), len(dataset.class_names)
    if dataset.targets.shape != shape:
        raise RunError(
            f"the targets have shape {dataset.targets.shape}, but {shape[0]} images and {shape[1]} "
            f"class names need {shape}"
        )
    if demux.image_size is not None and demux.image_size != tuple(dataset.image_size):
        raise RunError(
            f"the data set gives images of {tuple(dataset.image_size)}, but this classifier is "
            f"defended for {demux.image_size}; resize them to that when loading the data set"
        )
    demux.check(dataset.image_size)
    known = demux.classifier.class_names
    if known is not None and known != tuple(dataset.class_names):
        pairs = zip(known, dataset.class_names, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(known), shape[1]))
        raise RunError(
            f"the class names of the classifier ({len(known)}) and of the data set ({shape[1]}) "
            f"differ, first at place {place}: they must be the same classes in the same order"
        )
    return min(len(dataset), limit or len(dataset))


def check_footprint(
    footprint: Footprint, demux: PatchDemux, dataset: ImageSet, limit: int | None
) -> None:
    """Refuse a footprint that these photos do not have, or that the classifier is not defended for."""
    found = Footprint.in_set(footprint.patch, dataset, limit)
    if footprint != found:
        raise RunError(
            f"the footprint is not the one of this data set: it says {footprint}, but here it is "
            f"{found}; make it with Footprint.in_set(patch, dataset, limit)"
        )
    if demux.threat.single != footprint.threat:
        raise RunError(
            f"the classifier is defended against one {demux.threat.single}, but the footprint needs "
            f"one {footprint.threat}; give PatchDemux the footprint's threat"
        )


def begin(
    demux: PatchDemux,
    dataset: ImageSet,
    path: Path,
    images: list[int],
    left_out: list[dict[str, str]],
    images_per_chunk: int,
    batch_size: int | None,
    model_id: str | None,
    footprint: Footprint | None = None,
) -> RunStore:
    """A new run without scores yet, but with the margin measured on its first images.

    Without a batch size, the fastest is found first.
    """
    pixels = read_chunk(dataset, images[:images_per_chunk])
    facts = survey(demux, pixels[0], len(dataset.class_names))
    if batch_size is None:
        batch_size = time_views(demux, pixels, None).batch_size
    fields = fingerprint(
        demux,
        dataset,
        images,
        batch_size=batch_size,
        images_per_chunk=images_per_chunk,
        model_id=model_id,
        footprint=footprint,
    )
    margin = measure_margin(demux, pixels, batch_sizes=(*BATCH_SIZES, batch_size))
    attributes = {
        "class_names": list(dataset.class_names),
        "threat": demux.threat.settings,
        "footprint": None if footprint is None else asdict(footprint),
        "data": dict(dataset.description),
        **{name: fields[name] for name in ("model", "defense", "precision", "fill", "image_size")},
        "defense_fields": defense_record(demux.defense),
        "runtime": {"name": demux.classifier.runtime, "precision": demux.classifier.precision},
        "batch_size": batch_size,
        "images_per_chunk": images_per_chunk,
        "views_per_image": facts.views,
        "margin": asdict(margin),
        "versions": {
            "patchdemux": patchdemux.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.platform(),
            "device": fields["device"],
            "cores": os.cpu_count(),
        },
        "fingerprint": digest(fields),
        "fingerprint_fields": fields,
        "left_out": left_out,
        "started": now(),
        "finished": None,
    }
    return RunStore.create(
        path,
        names=[dataset.names[image] for image in images],
        targets=dataset.targets[images],
        class_names=dataset.class_names,
        regions=facts.regions,
        boxes=facts.boxes,
        images_per_chunk=images_per_chunk,
        attributes=attributes,
    )


def now() -> str:
    """The time, as it is recorded."""
    return datetime.now(UTC).isoformat(timespec="seconds")
