"""The sizes that photos have before they become the model's input."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from patchdemux.data.base import ImageError, ImageSet
from patchdemux.data.decode import photo_size, read_bytes
from patchdemux.data.photos import PhotoSet
from patchdemux.data.preprocess import Preprocessing
from patchdemux.data.views import Subset

Sizes = dict[tuple[int, int], str]
"""Every height and width that occurs, with the name of the first photo that has it."""


def sizes_in(dataset: ImageSet, limit: int | None = None) -> Sizes:
    """Of the photos of a data set, or of its first so many; what cannot be read has no size."""

    def size(index: int) -> tuple[int, int]:
        photos, place = behind(dataset, index)
        return photos.photo_size(place)

    return different(dataset.names[:limit], size)


def sizes_of(files: Sequence[Path], preprocessing: Preprocessing) -> Sizes:
    """Of photos in files."""
    rotation = preprocessing.exif_rotation

    def size(index: int) -> tuple[int, int]:
        file = files[index]
        return photo_size(read_bytes(file), str(file), exif_rotation=rotation)

    return different([str(file) for file in files], size)


def different(names: Sequence[str], size: Callable[[int], tuple[int, int]]) -> Sizes:
    """The sizes that occur among photos of these names."""

    def known(index: int) -> tuple[int, int] | None:
        try:
            return size(index)
        except ImageError:
            return None

    sizes: Sizes = {}
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for name, found in zip(names, pool.map(known, range(len(names))), strict=True):
            if found is not None:
                sizes.setdefault(found, name)
    if not sizes:
        raise ImageError(f"none of the photos can be read, the first of them {names[0]}")
    return sizes


def behind(dataset: ImageSet, index: int = 0) -> tuple[PhotoSet, int]:
    """The photos that a data set, or a part of one, is made of; and the place of this image there."""
    if isinstance(dataset, Subset):
        return behind(dataset.whole, dataset.indices[index])
    if not isinstance(dataset, PhotoSet):
        raise ValueError(
            "a patch on the photo needs photos, but these images come at the size of the model's "
            "input: give the patch in its pixels, or as a share of it"
        )
    return dataset, index
