"""Getting images off the disk: checked before the first score, and read while the model runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from patchdemux.data.base import ImageError, ImageSet
from patchdemux.runs.errors import RunError
from patchdemux.runs.progress import Report, Status

OnError = Literal["stop", "skip"]


def readable_images(
    dataset: ImageSet, count: int, on_error: OnError, report: Report | None
) -> tuple[list[int], list[dict[str, str]]]:
    """The first `count` images that can be read; name and reason of each that cannot.

    All are opened before the first score. So a broken image is known in minutes, not after days; and
    which images a run holds is settled when it begins, so that its arrays have no holes and no
    later failure (a network drive that hangs for a minute) can silently thin it out.
    """
    kept: list[int] = []
    left_out: list[dict[str, str]] = []
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    try:
        errors = pool.map(partial(_error_of, dataset), range(count))
        for index, error in enumerate(errors):
            if error is None:
                kept.append(index)
            elif on_error == "skip":
                left_out.append({"name": dataset.names[index], "reason": str(error)})
            else:
                raise error
            if report:
                report(Status("checking images", index + 1, count))
    finally:
        pool.shutdown(cancel_futures=True)
    if not kept:
        raise RunError(f"none of {count} images can be read; the first: {left_out[0]['reason']}")
    return kept, left_out


def read_chunk(dataset: ImageSet, images: Sequence[int]) -> Tensor:
    """Some images as one batch."""
    return torch.stack([_read(dataset, image) for image in images])


def read_ahead(
    dataset: ImageSet, images: Sequence[int], chunks: Sequence[range]
) -> Iterator[tuple[range, Tensor]]:
    """Every chunk with its images; the next ones are read while these are being worked on."""

    def read(chunk: range) -> Tensor:
        return read_chunk(dataset, [images[place] for place in chunk])

    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(read, chunk) for chunk in chunks[:1]]
        for place, chunk in enumerate(chunks):
            pixels = coming.pop().result()
            coming = [reader.submit(read, later) for later in chunks[place + 1 : place + 2]]
            yield chunk, pixels


def _read(dataset: ImageSet, image: int) -> Tensor:
    pixels = dataset[image]
    size = tuple(pixels.shape[-2:])
    if pixels.ndim != 3 or size != tuple(dataset.image_size):
        raise RunError(
            f"{dataset.names[image]} has shape {tuple(pixels.shape)}, but this data set promises "
            f"(channel, height, width) with height and width {tuple(dataset.image_size)}"
        )
    return pixels


def _error_of(dataset: ImageSet, image: int) -> ImageError | None:
    try:
        _read(dataset, image)
    except ImageError as error:
        return error
    return None
