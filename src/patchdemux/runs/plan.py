"""What a run will cost, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.runs.begin import IMAGES_PER_CHUNK, check_fit
from patchdemux.runs.images import read_chunk
from patchdemux.runs.measure import repeatable, survey, time_views
from patchdemux.runs.store import bytes_per_image


@dataclass(frozen=True)
class Plan:
    """What a run will cost on this machine.

    Attributes:
        images: images to evaluate.
        views_per_image: forward passes per image.
        views: forward passes in total.
        seconds: time, from a short timing of this model with real views.
        disk_bytes: space on disk at most; compression usually saves some.
        batch_size: views per call of the model that were timed.
        regions, classes: size of the answer per image.
    """

    images: int
    views_per_image: int
    views: int
    seconds: float
    disk_bytes: int
    batch_size: int
    regions: int
    classes: int


def plan(
    demux: PatchDemux,
    dataset: ImageSet,
    *,
    batch_size: int | None = None,
    limit: int | None = None,
) -> Plan:
    """Views, time and disk space that `evaluate` with the same arguments will take."""
    images = check_fit(demux, dataset, limit)
    classes = len(dataset.class_names)
    pixels = read_chunk(dataset, range(min(images, IMAGES_PER_CHUNK)))
    with repeatable():
        facts = survey(demux, pixels[0], classes)
        timing = time_views(demux, pixels, batch_size or demux.engine.batch.fixed)
    return Plan(
        images=images,
        views_per_image=facts.views,
        views=images * facts.views,
        seconds=images * facts.views * timing.seconds_per_view,
        disk_bytes=images * bytes_per_image(facts.regions, classes),
        batch_size=timing.batch_size,
        regions=facts.regions,
        classes=classes,
    )
