"""A part of a data set, with the choice on record."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from patchdemux.data.base import ImageSet
from patchdemux.data.files import duplicate, sha256


class Subset(ImageSet):
    """Some images of a data set. Made by `subset`, `without`, `limit` and `every`.

    Args:
        whole: the data set.
        indices: which of its images, in which order.
        selection: how they were chosen, as plain JSON values, for the description.
    """

    def __init__(self, whole: ImageSet, indices: Sequence[int], selection: dict[str, Any]) -> None:
        if not indices:
            raise ValueError(f"no image is left of {len(whole)} with the selection {selection}")
        self.whole = whole
        self.indices = tuple(indices)
        self.class_names = whole.class_names
        self.image_size = whole.image_size
        self.names = tuple(whole.names[index] for index in indices)
        self.targets = whole.targets[list(indices)]
        self.targets.setflags(write=False)
        self.description = {
            **whole.description,
            "images": len(indices),
            "selections": [*whole.description.get("selections", []), selection],
        }

    def __getitem__(self, index: int) -> Tensor:
        return self.whole[self.indices[index]]


def subset(dataset: ImageSet, indices: Iterable[int]) -> Subset:
    """These images of a data set, in this order."""
    chosen = [operator.index(index) for index in indices]
    for index in chosen:
        if not 0 <= index < len(dataset):
            raise IndexError(f"there is no image {index} in a data set of {len(dataset)} images")
    if (twice := duplicate(chosen)) is not None:
        raise ValueError(f"image {twice} is chosen twice")
    return Subset(dataset, chosen, {"indices_sha256": sha256(np.array(chosen, "<i8").tobytes())})


def limit(dataset: ImageSet, count: int) -> ImageSet:
    """The first `count` images, or all where there are fewer."""
    if count < 1:
        raise ValueError(f"count must be at least 1, but got {count}")
    if count >= len(dataset):
        return dataset
    return Subset(dataset, range(count), {"first": count})


def every(dataset: ImageSet, step: int) -> ImageSet:
    """Every `step`-th image, beginning with the first: a smaller set spread over the whole."""
    if step < 1:
        raise ValueError(f"step must be at least 1, but got {step}")
    return dataset if step == 1 else Subset(dataset, range(0, len(dataset), step), {"every": step})


def without(dataset: ImageSet, names: Collection[str]) -> ImageSet:
    """All images but these, whose names stay on record in the description."""
    if not names:
        return dataset
    left_out = set(names)
    if unknown := sorted(left_out.difference(dataset.names)):
        raise ValueError(f"there is no image {unknown[0]!r} in the data set to leave out")
    kept = [index for index, name in enumerate(dataset.names) if name not in left_out]
    in_order = [name for name in dataset.names if name in left_out]
    return Subset(dataset, kept, {"left_out": in_order})
