"""Interval bound propagation over all contents of a patch (Chiang et al. 2020)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import exceeds
from patchdemux.classifier import Classifier
from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.intervals import Interval, layers_of, propagate, scaled
from patchdemux.engine import Engine, check_images, device_of
from patchdemux.inputs import as_threshold
from patchdemux.masks import MaskSet
from patchdemux.runtimes.base import RuntimeClassifier
from patchdemux.threat import PatchThreat, Size, as_size

DOUBLE = torch.finfo(torch.float64).eps / 2
"""The unit roundoff of double precision."""


@dataclass(frozen=True)
class IntervalBounds(Defense):
    """Let every pixel of a region be anything in [0, 1], and bound what the network makes of it.

    The defended score is the classifier's own, with the layers computed in double precision; the
    intervals allow for the rounding of both. Only small networks that were trained for it have
    bounds worth having: see `patchdemux.defenses.intervals` for the layers.

    Args:
        stride: placements of the patch, along each axis, that share a region, which holds them all.
            1 is tightest; the cost falls with the square.
    """

    needs: ClassVar[str] = "a small nn.Sequential of plain layers, trained with interval bounds"

    stride: int = 1

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride must be at least 1, but got {self.stride}")

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        super().check(classifier, image_size, threat)
        if type(classifier) not in (Classifier, RuntimeClassifier) or classifier.visible_channel:
            raise ValueError(
                "intervals go through a plain Classifier of the image alone: no class derived from "
                "it, and no visible channel"
            )
        layers_of(classifier.model)

    def in_words(self, image_size: Size, threat: PatchThreat) -> str:
        regions = len(self.mask_set(image_size, threat))
        return f"intervals for {regions} regions, which hold every {threat}"

    def mask_set(self, image_size: Size, threat: PatchThreat) -> MaskSet:
        """The regions: boxes that hold `stride` placements along each axis."""
        rows, columns = (
            -(-(length - patch + 1) // self.stride)
            for length, patch in zip(
                as_size("image_size", image_size), (threat.height, threat.width), strict=True
            )
        )
        return MaskSet.covering(image_size, threat, (rows, columns))

    def region_boxes(self, image_size: Size, threat: PatchThreat) -> Int[np.ndarray, "region 4"]:
        return self.mask_set(image_size, threat).boxes

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        height, width = images.shape[-2:]
        hidden = self.mask_set((height, width), threat).dense()
        network = DoubleNetwork(engine, images)
        ends = network.reachable(hidden)
        return ScoreBounds(engine.scores(images), network.scores(), ends[..., 0], ends[..., 1])

    def decide(
        self,
        engine: Engine,
        images: Tensor,
        threat: PatchThreat,
        threshold: float,
        max_views: int | None = None,
    ) -> Decision:
        """Labels need no bounds: the defended score is the classifier's own."""
        if max_views is not None and max_views < 1:
            raise ValueError(f"max_views must be at least 1, but got {max_views}")
        scores = DoubleNetwork(engine, images).scores()
        labels = exceeds(scores, as_threshold(threshold))
        return Decision(labels, np.ones_like(labels), scores, scores, np.ones(len(images), int))


class DoubleNetwork:
    """A classifier's layers in double precision, on images or on intervals of images.

    Args:
        engine: its classifier is run, in its batches.
        images: (image, channel, height, width) in [0, 1].
    """

    def __init__(self, engine: Engine, images: Tensor) -> None:
        self.engine = engine
        classifier = engine.classifier
        device = device_of(classifier, images)
        self.images = check_images(images).to(device).double()
        self.layers = [deepcopy(layer).double().eval() for layer in layers_of(classifier.model)]
        self.mean, self.std = classifier.mean.to(self.images), classifier.std.to(self.images)

    def scores(self) -> Float[np.ndarray, "image class"]:
        """The scores of the images, rounded to float32 at the end."""

        def compute(first: int, last: int) -> Float[np.ndarray, "image class"]:
            images = self.images[first:last]
            scores = nn.Sequential(*self.layers)((images - self.mean) / self.std)
            return as_float32(self.engine.classifier.checked(images, scores))

        return self.engine.batched(len(self.images), compute)

    def reachable(self, hidden: np.ndarray) -> Float[np.ndarray, "image region class 2"]:
        """Lowest and highest scores when all pixels of a region are free, rounded to float32.

        Rounding is monotone, so a score within the ends is still within them when all are rounded.
        """
        free = torch.from_numpy(hidden).to(self.images)
        size = self.mean.abs() / self.std

        def compute(first: int, last: int) -> Float[np.ndarray, "job values"]:
            jobs = torch.arange(first, last, device=free.device)
            region = free[jobs % len(free)][:, None]
            low = self.images[jobs // len(free)] * (1 - region)
            inputs = Interval(low, low + region)
            inputs = scaled(inputs, 1 / self.std, -self.mean / self.std, size, DOUBLE)
            outputs = propagate(self.layers, inputs, DOUBLE)
            return as_float32(torch.stack(outputs, dim=2).flatten(1))

        ends = self.engine.batched(len(self.images) * len(free), compute)
        return ends.reshape(len(self.images), len(free), -1, 2)


def as_float32(scores: Tensor) -> np.ndarray:
    """Scores as the package keeps them."""
    return np.asarray(scores.float().cpu().numpy())
