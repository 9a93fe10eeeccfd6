"""What a fine-tuning will do and cost, and whether it can work at all: known before it begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import nn

from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.engine import device_of, running
from patchdemux.training.batches import resized, split, steps_per_epoch
from patchdemux.training.cutout import searched_views
from patchdemux.training.hiding import trained_size
from patchdemux.training.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Plan:
    """What a fine-tuning will do.

    Attributes:
        training: images to train on.
        held_out: images that tell which epoch was best.
        steps: of the whole training.
        batch_size: images per step.
        search_views: forward passes of the search for masks, at most.
        views_per_image: of these, those for one image, each time.
    """

    training: Int[np.ndarray, " image"]
    held_out: Int[np.ndarray, " image"]
    steps: int
    batch_size: int
    search_views: int
    views_per_image: int

    def __str__(self) -> str:
        text = (
            f"{len(self.training):,} images, and {len(self.held_out):,} held out; {self.steps:,} steps "
            f"of {self.batch_size}"
        )
        if self.search_views:
            text += (
                f"; the search for masks takes {self.search_views:,} forward passes at most, "
                f"{self.views_per_image} for an image"
            )
        return text


def planned(classifier: Classifier, dataset: ImageSet, recipe: Recipe) -> Plan:
    """Steps and cost of a fine-tuning.

    Raises:
        TypeError, ValueError: it cannot work, and why.
    """
    check_masks(dataset, recipe)
    check_classifier(classifier, dataset, recipe)
    training, held_out = split(recipe, len(dataset))
    check_labels(dataset, training, held_out)
    steps = recipe.epochs * steps_per_epoch(recipe, len(training))
    views, searched = 0, len(training)
    if recipe.cutout == "greedy":
        views = searched_views(recipe.mask_sets(trained_size(recipe, dataset)))
    if recipe.search == "each":
        searched = round(recipe.share * steps * recipe.batch_size)
    return Plan(training, held_out, steps, recipe.batch_size, views * searched, views)


def check_masks(dataset: ImageSet, recipe: Recipe) -> None:
    """The masks fit into the images, those that are learned from and those held out."""
    if recipe.cutout == "none":
        return
    for height, width in {trained_size(recipe, dataset), tuple(dataset.image_size)}:
        for count, masks in zip(recipe.masks, recipe.mask_sets((height, width)), strict=True):
            if masks.dense().all(axis=(1, 2)).any():
                raise ValueError(
                    f"one of {count} x {count} masks against a {masks.threat} hides a whole image of "
                    f"{height} x {width} pixels: give a smaller patch than {recipe.patch:.3g}, or "
                    f"more masks"
                )


def check_classifier(classifier: Classifier, dataset: ImageSet, recipe: Recipe) -> None:
    """The classifier can learn, and answers for the classes of the data."""
    if not isinstance(classifier.model, nn.Module) or next(classifier.parameters(), None) is None:
        raise TypeError("only a torch module with weights can be fine-tuned")
    if classifier.runtime != "torch" or classifier.precision != "float32":
        raise ValueError("fine-tuning needs the classifier in torch and float32")
    kinds = sorted(
        {str(weights.dtype).removeprefix("torch.") for weights in classifier.parameters()}
    )
    if kinds != ["float32"]:
        raise ValueError(
            f"fine-tuning needs weights in float32, but they are {' and '.join(kinds)}: call "
            f'classifier.float(). Mixed precision is precision="bfloat16"'
        )
    if not any(weights.requires_grad for weights in classifier.parameters()):
        raise ValueError(
            "all weights are frozen (requires_grad is False): there is nothing to learn"
        )
    if classifier.image_size not in (None, tuple(dataset.image_size)):
        raise ValueError(
            f"the classifier wants images of {classifier.image_size}, but the data set gives "
            f"{tuple(dataset.image_size)}"
        )
    new_head = (
        "give it a new head, with --new-head or with_classes(classifier, dataset.class_names)"
    )
    names = classifier.class_names
    if names is not None and names != tuple(dataset.class_names):
        raise ValueError(
            f"the classifier answers for {len(names)} classes ({', '.join(names[:3])}, ...), the data "
            f"have {len(dataset.class_names)} ({', '.join(dataset.class_names[:3])}, ...): {new_head}"
        )
    image = dataset[0]
    shown = image[None].to(device_of(classifier, image))
    with running(classifier):
        outputs = classifier(shown).shape[1]
    if outputs != len(dataset.class_names):
        raise ValueError(
            f"the model gives {outputs} scores, but the data have {len(dataset.class_names)} classes: "
            f"{new_head}"
        )
    size = trained_size(recipe, dataset)
    try:
        with running(classifier):
            classifier(resized(image, size)[None].to(shown))
    except Exception as error:  # each library has its own
        raise ValueError(
            f"the model does not take images of {size[0]} x {size[1]} pixels, as size and --train-size "
            f"ask: {error}"
        ) from error


def check_labels(
    dataset: ImageSet,
    training: Int[np.ndarray, " image"],
    held_out: Int[np.ndarray, " image"],
) -> None:
    """Every class can be learned, and what was learned can be measured."""
    positives = dataset.targets[training].sum(axis=0)
    empty = [dataset.class_names[place] for place in np.flatnonzero(positives == 0)]
    if empty:
        raise ValueError(
            f"no image to train on has the label {', '.join(empty[:8])}"
            f"{f' and {len(empty) - 8} more' if len(empty) > 8 else ''}: such a class cannot be "
            f"learned. Take more images, or leave the class out"
        )
    if not dataset.targets[held_out].any():
        raise ValueError(
            f"{len(held_out)} of {len(dataset)} images are held out, and none of them has a label: "
            f"give a larger held_out share, so that they can tell which epoch was best"
        )
