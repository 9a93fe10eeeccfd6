"""How a classifier is fine-tuned: everything that decides the weights, apart from model and data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from patchdemux.masks import MaskSet
from patchdemux.threat import PatchThreat, Size

Cutout = Literal["none", "random", "greedy", "views"]
Augment = Literal["none", "flip", "crop"]
Optimizer = Literal["adam", "adamw"]
Precision = Literal["float32", "bfloat16"]
Search = Literal["each", "once"]


@dataclass(frozen=True)
class Recipe:
    """The settings of a fine-tuning; the defaults are the paper's.

    Args:
        cutout: what is hidden from the model while it learns. "random": two squares at random places.
            "greedy": of the masks that certification uses, the one that raises the loss most, and then
            the one that raises it most together with the first. "views": every image is seen whole and
            behind several random pairs of those masks, and each label learns from its worst view, as
            certification judges it. "none": nothing, plain training.
        masks: rows and columns of masks: (6,) for 6 x 6. Of "greedy", several are searched from coarse
            to fine: (3, 6) looks at the 3 x 3 masks, then at the 6 x 6 masks whose middle lies in the
            worst of them, and takes the worst of all that it tried.
        search: of "greedy", when. "each": in every step, with the weights as they are by then. "once":
            for every image beforehand, with the weights that training begins with, into a file.
        search_runtime, search_precision: of a search beforehand, what runs the model.
        views: of "views", how many there are of each image, the whole image included.
        patch: share of the image that the masks are made for.
        largest: of "random", the most that one square takes of the image.
        share: of the images that get a cutout.
        fill: gray of what is hidden, in [0, 1].
        epochs: passes over the images.
        batch_size: images per step, over all processes.
        rate: the highest learning rate of the one-cycle schedule.
        warmup: share of the steps in which the rate rises.
        optimizer: "adam" or "adamw".
        weight_decay: of the optimizer.
        focus_positive, focus_negative, clip: of the asymmetric loss.
        average: decay of the moving average of the weights, per step; 0 for no average.
        augment: "flip" images left to right at random; "crop": and cut out a part of them, stretched.
        smallest_crop: share of the image's area that such a part has at least. What is cut away keeps
            its labels, so small parts teach the model to guess.
        size: height and width that images are shrunk to; None: as the model wants them. Training on
            smaller images is faster, where the model takes images of any size.
        precision: "float32", or "bfloat16" for mixed precision.
        freeze_norm: keep the statistics of batch normalisation as they are.
        held_out: share of the images that are not trained on but tell which epoch was best.
        seed: of the order, the augmentation, the cutouts and the images held out.

    >>> Recipe(cutout="greedy", masks=(3,), epochs=2).rate
    5e-05
    """

    cutout: Cutout = "greedy"
    masks: tuple[int, ...] = (6,)
    search: Search = "each"
    search_runtime: str = "torch"
    search_precision: str = "float32"
    views: int = 4
    patch: float = 0.02
    largest: float = 0.25
    share: float = 1.0
    fill: float = 0.0
    epochs: int = 5
    batch_size: int = 32
    rate: float = 5e-5
    warmup: float = 0.2
    optimizer: Optimizer = "adam"
    weight_decay: float = 1e-4
    focus_positive: float = 0.0
    focus_negative: float = 4.0
    clip: float = 0.05
    average: float = 0.999
    augment: Augment = "flip"
    smallest_crop: float = 0.4
    size: int | None = None
    precision: Precision = "float32"
    freeze_norm: bool = False
    held_out: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {
            "cutout": Cutout,
            "search": Search,
            "augment": Augment,
            "optimizer": Optimizer,
            "precision": Precision,
        }
        for name, options in choices.items():
            if getattr(self, name) not in get_args(options):
                raise ValueError(
                    f"{name} must be one of {get_args(options)}, but got {getattr(self, name)!r}"
                )
        for name in ("epochs", "batch_size", "views"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but got {getattr(self, name)}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be at least 1, but got {self.size}")
        for name in ("patch", "largest", "share", "smallest_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} is a share, above 0 and at most 1, but got {getattr(self, name)}"
                )
        for name in ("warmup", "average", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 0 and below 1, but got {getattr(self, name)}"
                )
        for name in ("weight_decay", "focus_positive", "focus_negative", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, but got {getattr(self, name)}")
        if not 0 <= self.fill <= 1:
            raise ValueError(f"fill must be a gray within [0, 1], but got {self.fill}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be above 0, but got {self.rate}")
        object.__setattr__(self, "masks", tuple(self.masks))
        if not self.masks or any(count < 1 for count in self.masks):
            raise ValueError(
                f"masks must be numbers of at least 1, as (6,) or (3, 6), but got {self.masks}"
            )
        if sorted(set(self.masks)) != list(self.masks):
            raise ValueError(f"masks must go from coarse to fine, as (3, 6), but got {self.masks}")
        if self.search == "each" and (self.search_runtime, self.search_precision) != (
            "torch",
            "float32",
        ):
            raise ValueError(
                'search="each" asks the model as it learns, in torch and float32; other runtimes and '
                'precisions need search="once"'
            )
        if self.search == "once" and self.augment == "crop":
            raise ValueError(
                'search="once" finds masks for whole images, and augment="crop" shows parts of them; '
                'take search="each", or augment="flip"'
            )

    def mask_sets(self, image_size: Size) -> tuple[MaskSet, ...]:
        """The masks of every level, coarse to fine, for images of this size."""
        threat = PatchThreat.from_area(self.patch, image_size)
        return tuple(MaskSet.covering(image_size, threat, count) for count in self.masks)
