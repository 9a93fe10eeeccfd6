"""Which pixels of which images are hidden in a step, as the recipe says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.engine import Engine
from patchdemux.runtimes import make_runtime
from patchdemux.training.batches import CUTOUT, Place, flipped, generator, resized, size_of
from patchdemux.training.cutout import Losses, all_hidden, greedy_masks, random_squares
from patchdemux.training.processes import Processes
from patchdemux.training.recipe import Recipe

VIEWS = 64
"""Views per call of the model in a search: fixed, so that a resumed training finds the same masks."""

AT_ONCE = 32
"""Images that each process searches at once beforehand."""


class Hider:
    """Hides parts of the images that a classifier learns from.

    Args:
        classifier: the one that learns; a greedy search asks it as it is at the time.
        recipe: what is hidden.
        image_size: height and width of the images that are learned from.
        losses: of the training.
    """

    def __init__(
        self, classifier: Classifier, recipe: Recipe, image_size: tuple[int, int], losses: Losses
    ) -> None:
        self.recipe, self.losses = recipe, losses
        self.size = image_size
        masked = recipe.cutout in ("greedy", "views")
        self.levels = recipe.mask_sets(image_size) if masked else ()
        self.hidden = all_hidden(self.levels) if masked else None
        self.engine = Engine(classifier, fill=recipe.fill, batch_size=VIEWS)
        self.found: Int[np.ndarray, "image 2"] | None = None  # of a search beforehand

    def hide(
        self, place: Place, images: Tensor, targets: Tensor
    ) -> Float[Tensor, "view channel height width"]:
        """The images of one place of the training, with parts of some of them hidden.

        There are as many views as images, or a multiple of that: all images in one view, then all of
        them in the next.
        """
        if self.recipe.cutout == "none":
            return images
        chances = [generator(self.recipe, CUTOUT, place.epoch, i) for i in place.images.tolist()]
        if self.recipe.cutout == "views":
            return self._views(images, chances)
        chosen = np.flatnonzero([chance.random() < self.recipe.share for chance in chances])
        if not len(chosen):
            return images
        if self.recipe.cutout == "random":
            hidden = np.stack(
                [random_squares(self.size, self.recipe.largest, chances[i]) for i in chosen]
            )
        elif self.found is not None:
            hidden = self._known(place.epoch, place.images[chosen])
        else:
            hidden = self._searched(images[chosen], targets[chosen])
        images = images.clone()
        images[chosen] = images[chosen].masked_fill(
            torch.from_numpy(hidden)[:, None].to(images.device), self.recipe.fill
        )
        return images

    def _views(
        self, images: Tensor, chances: list[np.random.Generator]
    ) -> Float[Tensor, "view channel height width"]:
        """The images as they are, and then behind pairs of masks, another pair for every view."""
        assert self.hidden is not None
        drawn = (self.recipe.views - 1, 2)
        pairs = np.stack([chance.integers(len(self.hidden), size=drawn) for chance in chances], 1)
        hidden = torch.from_numpy(self.hidden[pairs].any(axis=2))[:, :, None]
        masked = images.masked_fill(hidden.to(images.device), self.recipe.fill)
        return torch.cat([images, masked.flatten(0, 1)])

    def search_beforehand(
        self,
        dataset: ImageSet,
        images: Int[np.ndarray, " image"],
        found: Int[np.ndarray, "image 2"] | None,
        processes: Processes,
        save: Callable[[Int[np.ndarray, "image 2"]], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Find the masks of these images once; what was `found` already is not searched again.

        The processes share the images. Whatever was interrupted, an image is always searched together
        with the same others: with others its scores would differ in their last bits.
        """
        self.found = np.full((len(dataset), 2), -1) if found is None else found
        runtime, precision = self.recipe.search_runtime, self.recipe.search_precision
        classifier = make_runtime(self.engine.classifier, runtime, precision)
        engine = Engine(classifier, fill=self.recipe.fill, batch_size=VIEWS)
        at_once = AT_ONCE * processes.count
        for start in range(0, len(images), at_once):
            some = images[start : start + at_once]
            if (self.found[some] < 0).any():
                own = some[processes.rank :: processes.count]
                masks = self._searched_of(engine, dataset, own)
                for rank, theirs in enumerate(processes.gathered(masks)):
                    self.found[some[rank :: processes.count]] = theirs
                save(self.found)
            progress(start + len(some), len(images))

    def _searched_of(
        self, engine: Engine, dataset: ImageSet, images: Int[np.ndarray, " image"]
    ) -> Int[np.ndarray, "image 2"]:
        if not len(images):
            return np.empty((0, 2), int)
        pixels = torch.stack([resized(dataset[i], self.size) for i in images.tolist()])
        targets = torch.from_numpy(dataset.targets[images])
        return greedy_masks(engine, pixels, targets, self.levels, self.losses)

    def _known(
        self, epoch: int, images: Int[np.ndarray, " image"]
    ) -> Bool[np.ndarray, "image height width"]:
        """The masks that were found beforehand, turned as the images are."""
        assert self.found is not None
        assert self.hidden is not None
        hidden = self.hidden[self.found[images]].any(axis=1)
        for place, image in enumerate(images.tolist()):
            if flipped(self.recipe, epoch, image):
                hidden[place] = hidden[place, :, ::-1].copy()
        return np.asarray(hidden)

    def _searched(self, images: Tensor, targets: Tensor) -> Bool[np.ndarray, "image height width"]:
        assert self.hidden is not None
        found = greedy_masks(self.engine, images, targets.cpu(), self.levels, self.losses)
        return np.asarray(self.hidden[found].any(axis=1))


def trained_size(recipe: Recipe, dataset: ImageSet) -> tuple[int, int]:
    """Height and width of the images that are learned from."""
    return size_of(recipe, dataset.image_size)
