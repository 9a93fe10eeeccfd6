"""Batches of a training: order, augmentation and cutouts, each decided by its place alone.

Every random choice comes from a generator of its own, seeded with the recipe's seed, the epoch and the
image. So a batch does not depend on how many processes share it, nor on what was interrupted before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from patchdemux.data.base import ImageSet
from patchdemux.training.recipe import Recipe

ORDER, CROP, FLIP, CUTOUT, HELD_OUT, DROPOUT = range(6)
"""What a generator is for; part of its seed."""

LONGEST_CROP = 4 / 3
"""Sides of a crop at most."""

READERS = 2


@dataclass(frozen=True)
class Place:
    """Images of a data set, at one place of the training."""

    epoch: int
    images: Int[np.ndarray, " image"]


def generator(recipe: Recipe, purpose: int, *place: int) -> np.random.Generator:
    """Random numbers for one purpose at one place of the training."""
    return np.random.default_rng((recipe.seed, purpose, *place))


def split(
    recipe: Recipe, count: int
) -> tuple[Int[np.ndarray, " training"], Int[np.ndarray, " held_out"]]:
    """Which images are trained on, and which are held out."""
    order = generator(recipe, HELD_OUT).permutation(count)
    held_out = round(recipe.held_out * count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def places(
    recipe: Recipe, images: Int[np.ndarray, " image"], first: int = 0
) -> Iterator[tuple[int, Place]]:
    """Every step from the `first` on, with its images; an incomplete last batch is left out."""
    steps = steps_per_epoch(recipe, len(images))
    for epoch in range(first // steps, recipe.epochs):
        order = generator(recipe, ORDER, epoch).permutation(images)
        for step in range(max(first - epoch * steps, 0), steps):
            part = slice(step * recipe.batch_size, (step + 1) * recipe.batch_size)
            yield epoch * steps + step, Place(epoch, order[part])


def steps_per_epoch(recipe: Recipe, images: int) -> int:
    steps = images // recipe.batch_size
    if not steps:
        raise ValueError(
            f"{images} images to train on make no batch of {recipe.batch_size}; "
            f"give a smaller batch_size"
        )
    return steps


def read_ahead(
    recipe: Recipe, dataset: ImageSet, upcoming: Iterator[tuple[int, Place]]
) -> Iterator[tuple[int, Place, Tensor]]:
    """Every step with its augmented images; the next batch is read while this one is learned from."""
    with ThreadPoolExecutor(READERS) as readers:

        def begin() -> tuple[int, Place, list[Future[Tensor]]] | None:
            for step, place in upcoming:
                return (
                    step,
                    place,
                    [
                        readers.submit(augmented, recipe, dataset, place.epoch, image)
                        for image in place.images.tolist()
                    ],
                )
            return None

        coming = begin()
        while coming is not None:
            step, place, reading = coming
            images = torch.stack([image.result() for image in reading])
            coming = begin()
            yield step, place, images


def augmented(
    recipe: Recipe, dataset: ImageSet, epoch: int, image: int
) -> Float[Tensor, "channel height width"]:
    """One image as it is shown in this epoch, cutouts aside."""
    pixels = dataset[image]
    if recipe.augment == "crop":
        pixels = crop(pixels, recipe.smallest_crop, generator(recipe, CROP, epoch, image))
    pixels = resized(pixels, size_of(recipe, dataset.image_size))
    return pixels.flip(2) if flipped(recipe, epoch, image) else pixels


def flipped(recipe: Recipe, epoch: int, image: int) -> bool:
    """Whether the image is shown left to right in this epoch."""
    return recipe.augment != "none" and bool(generator(recipe, FLIP, epoch, image).integers(2))


def crop(
    image: Float[Tensor, "channel height width"], smallest: float, random: np.random.Generator
) -> Float[Tensor, "channel height_ width_"]:
    """A part of the image, of random size (`smallest` is a share of the area), shape and place."""
    height, width = image.shape[1:]
    area = random.uniform(smallest, 1)
    shape = np.exp(random.uniform(-np.log(LONGEST_CROP), np.log(LONGEST_CROP)))
    rows = min(round(height * np.sqrt(area * shape)), height)
    columns = min(round(width * np.sqrt(area / shape)), width)
    top = int(random.integers(height - rows, endpoint=True))
    left = int(random.integers(width - columns, endpoint=True))
    return image[:, top : top + rows, left : left + columns]


def resized(
    image: Float[Tensor, "channel height width"], size: tuple[int, int]
) -> Float[Tensor, "channel height_ width_"]:
    """The image at this size."""
    if image.shape[1:] == size:
        return image
    batch: Tensor = interpolate(
        image[None], size, mode="bilinear", align_corners=False, antialias=True
    )
    return batch[0].clamp(0, 1)


def size_of(recipe: Recipe, image_size: Sequence[int]) -> tuple[int, int]:
    """Height and width of the images that are trained on."""
    height, width = image_size
    return (height, width) if recipe.size is None else (recipe.size, recipe.size)
