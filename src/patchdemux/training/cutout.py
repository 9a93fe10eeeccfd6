"""What is hidden from a model while it learns: random squares, or the masks that hurt it most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.engine import Engine
from patchdemux.masks import MaskSet

Losses = Callable[[Tensor, Tensor], Tensor]
"""From logits and targets (image, class) to the loss of every image."""

Scores = Callable[[Int[np.ndarray, "job k"]], Float[np.ndarray, "job class"]]
"""From rows of an image and the masks over it to scores, as `Engine.masked` gives it."""


def random_squares(
    size: tuple[int, int], largest: float, random: np.random.Generator, count: int = 2
) -> Bool[np.ndarray, "height width"]:
    """Where squares hide an image: each of at most a share `largest` of its area, at a random place.

    Their areas are uniform; a square is no wider than the image.
    """
    height, width = size
    hidden = np.zeros(size, bool)
    most = int((largest * height * width) ** 0.5)
    for share in random.uniform(0, largest, count):
        side = min(round((share * height * width) ** 0.5), most, height, width)
        top, left = random.integers(0, [height - side, width - side], endpoint=True)
        hidden[top : top + side, left : left + side] = True
    return hidden


def greedy_masks(
    engine: Engine,
    images: Tensor,
    targets: Tensor,
    levels: Sequence[MaskSet],
    losses: Losses,
) -> Int[np.ndarray, "image 2"]:
    """Two masks for every image: the one that raises its loss most, and the worst beside that one.

    Scores are those of the model in evaluation mode. Of several levels of masks, coarse to fine, the
    coarsest are all tried; of each finer level those whose middle lies in the worst one so far.

    Args:
        engine: runs the model.
        images: (image, channel, height, width) in [0, 1].
        targets: (image, class) labels.
        levels: sets of masks for images of this size.
        losses: of the training.

    Returns:
        Places of the masks in all levels, put one after the other.
    """
    scores_of = engine.masked(images, all_hidden(levels))
    chosen = np.empty((len(images), 0), int)
    for _ in range(2):
        worst = _worst_masks(scores_of, targets, levels, losses, chosen)
        chosen = np.concatenate([chosen, worst[:, None]], axis=1)
    return chosen


def all_hidden(levels: Sequence[MaskSet]) -> Bool[np.ndarray, "mask height width"]:
    """The masks of all levels as images, one after the other."""
    return np.concatenate([masks.dense() for masks in levels])


def searched_views(levels: Sequence[MaskSet]) -> int:
    """Forward passes that the search takes for an image, at most."""
    views = len(levels[0])
    for coarse, fine in pairwise(levels):
        views += int(_children(coarse, fine).sum(axis=1).max())
    return 2 * views


def _worst_masks(
    scores_of: Scores,
    targets: Tensor,
    levels: Sequence[MaskSet],
    losses: Losses,
    chosen: Int[np.ndarray, "image k"],
) -> Int[np.ndarray, " image"]:
    """For every image, the mask that raises its loss most, beside those that are chosen already."""
    images = len(targets)
    worst, highest = np.full(images, -1), np.full(images, -np.inf)
    candidates = np.ones((images, len(levels[0])), bool)
    first = 0  # place of the level's first mask among all
    for place, masks in enumerate(levels):
        owners, inside = np.nonzero(candidates)
        tried = first + inside
        scores = torch.from_numpy(scores_of(np.column_stack([owners, chosen[owners], tried])))
        found = np.full(candidates.shape, -np.inf)
        found[owners, inside] = losses(scores, targets[owners].to(scores)).numpy()
        best = found.argmax(axis=1)
        loss = found[range(images), best]
        worst = np.where(loss > highest, first + best, worst)
        highest = np.maximum(highest, loss)
        first += len(masks)
        if place + 1 < len(levels):
            candidates = _children(masks, levels[place + 1])[best]
    return worst


def _children(coarse: MaskSet, fine: MaskSet) -> Bool[np.ndarray, "coarse fine"]:
    """Which fine masks have their middle in which coarse mask."""
    middle = fine.boxes[:, :2] + fine.boxes[:, 2:] / 2
    start = coarse.boxes[:, None, :2]
    inside = (middle >= start) & (middle < start + coarse.boxes[:, None, 2:])
    return np.asarray(inside.all(axis=2))
