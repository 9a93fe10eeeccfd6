"""Finding the images that cannot be read before hours are spent on the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from patchdemux.data.base import ImageError, ImageSet
from patchdemux.data.photos import PhotoSet
from patchdemux.data.views import Subset

CheckProgress = Callable[[int, int], None]
"""Called with the number of images checked and their total."""


def check_images(
    dataset: ImageSet,
    on_error: str = "stop",
    *,
    deep: bool = False,
    workers: int | None = None,
    progress: CheckProgress | None = None,
) -> list[tuple[str, str]]:
    """The images that cannot be read: (name, reason) of each, in the order of the data set.

    Pass their names to `without` to go on with the others.

    Args:
        dataset: whose images are checked.
        on_error: "stop" raises for the first one; "skip" returns them all.
        deep: read every image as the run will; else only look whether its file is there.
        workers: threads that read; None takes one per core, at most 16.
        progress: called now and then, and at the end.

    Raises:
        ImageError: with on_error="stop", if an image cannot be read.
    """
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be 'stop' or 'skip', but got {on_error!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, but got {workers}")
    examine = failure if deep else absence
    step = 64 if deep else 4096
    found: list[tuple[str, str]] = []
    indices = iter(range(len(dataset)))
    done = 0
    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 16)) as pool:
        while block := list(islice(indices, step)):
            reasons = pool.map(lambda index: examine(dataset, index), block)
            found += [
                (dataset.names[index], reason)
                for index, reason in zip(block, reasons, strict=True)
                if reason is not None
            ]
            done += len(block)
            if progress is not None:
                progress(done, len(dataset))
            if found and on_error == "stop" and deep:
                break
    if found and on_error == "stop":
        raise ImageError(stopping(found, done))
    return found


def absence(dataset: ImageSet, index: int) -> str | None:
    """Why an image cannot be read, as far as that is seen without reading it; else None."""
    if isinstance(dataset, Subset):
        return absence(dataset.whole, dataset.indices[index])
    return dataset.absence(index) if isinstance(dataset, PhotoSet) else None


def failure(dataset: ImageSet, index: int) -> str | None:
    """Why reading an image fails; None if it does not."""
    try:
        dataset[index]
    except ImageError as error:
        return str(error)
    return None


def stopping(found: list[tuple[str, str]], checked: int) -> str:
    """The message for the first unreadable image, with the number of the others."""
    others = f" ({len(found)} of the {checked} images checked cannot be read)"
    return found[0][1] + (others if len(found) > 1 else "")
