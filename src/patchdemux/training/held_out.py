"""How good a model is on the images that it is not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from patchdemux.bounds import ScoreBounds
from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.engine import Engine
from patchdemux.metrics import precision_recall_curve
from patchdemux.training.batches import HELD_OUT, generator
from patchdemux.training.cutout import Losses
from patchdemux.training.recipe import Recipe

PAIRS = 3
"""Pairs of masks that each held-out image is seen behind, where masks are trained with."""

VIEWS = 64
"""Views per call of the model: fixed, so that a resumed training finds the same numbers."""

IMAGES = 32


@dataclass(frozen=True)
class HeldOut:
    """What was found on the held-out images.

    Attributes:
        loss: mean over the images, as they are and behind masks.
        ap: average precision (the paper's) of the images as they are.
        masked_ap: the same of the lowest score of a true label and the highest of a false one, over
            the views; so it is a sample of what certification asks for.
    """

    loss: float
    ap: float
    masked_ap: float


def measure_held_out(
    classifier: Classifier,
    dataset: ImageSet,
    images: Int[np.ndarray, " image"],
    recipe: Recipe,
    losses: Losses,
) -> HeldOut:
    """Score the held-out images as they are, and behind pairs of masks that are always the same."""
    engine = Engine(classifier, fill=recipe.fill, batch_size=VIEWS)
    hidden = np.zeros((1, *dataset.image_size), bool)
    pairs = 0 if recipe.cutout == "none" else PAIRS
    if pairs:
        hidden = np.concatenate([hidden, recipe.mask_sets(dataset.image_size)[-1].dense()])
    found, each = [], []
    for start in range(0, len(images), IMAGES):
        some = images[start : start + IMAGES].tolist()
        pixels = torch.stack([dataset[image] for image in some])
        jobs = [
            (place, *views)
            for place, image in enumerate(some)
            for views in [(0, 0), *_pairs(recipe, image, len(hidden) - 1)]
        ]
        scores = engine.masked(pixels, hidden)(np.array(jobs))
        targets = torch.from_numpy(dataset.targets[some]).float()
        repeated = targets.repeat_interleave(1 + pairs, dim=0)
        each.append(losses(torch.from_numpy(scores), repeated))
        found.append(scores.reshape(len(some), 1 + pairs, -1))
    views = np.concatenate(found)
    whole = views[:, 0]
    bounds = ScoreBounds(
        whole, whole, views.min(axis=1, keepdims=True), views.max(axis=1, keepdims=True)
    )
    true = dataset.targets[images]
    ap, masked_ap = (
        precision_recall_curve(bounds, true, setting).paper_average_precision()
        for setting in ("undefended", "certified")
    )
    return HeldOut(float(torch.cat(each).mean()), ap, masked_ap)


def _pairs(recipe: Recipe, image: int, masks: int) -> list[list[int]]:
    """The masks, numbered from 1, that one held-out image is seen behind."""
    if not masks:
        return []
    pairs: list[list[int]] = (
        generator(recipe, HELD_OUT, image).integers(1, masks, (PAIRS, 2), endpoint=True).tolist()
    )
    return pairs
