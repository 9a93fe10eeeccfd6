"""The one thing that a defense has to supply: bounds for a batch of images. Labels follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import predict
from patchdemux.engine import Engine
from patchdemux.inputs import as_threshold
from patchdemux.threat import PatchThreat, Size


@dataclass(frozen=True, eq=False)
class Decision:
    """The defended classifier's labels at one threshold, as far as the views that were run decide them.

    Attributes:
        labels: (image, class), meaningful where `decided`.
        decided: (image, class), false where a limit on the views came first.
        lower, upper: (image, class), what is known of the defended score, as a logit:
            `lower <= defended <= upper`. Undecided is what has the threshold in there, so that more
            views could make it either label: `lower <= threshold < upper`.
        views: forward passes per image; None where the defense does not tell.
    """

    labels: Bool[np.ndarray, "image class"]
    decided: Bool[np.ndarray, "image class"]
    lower: Float[np.ndarray, "image class"]
    upper: Float[np.ndarray, "image class"]
    views: Int[np.ndarray, " image"] | None


class Defense(ABC):
    """A certifiable defense against patches, with one method to write.

    A defense decides what the classifier is shown, and turns the scores into a defended score with an
    interval per region of the image, such that every placement of the threat's patch lies inside at
    least one region. It runs the classifier through the engine only.
    """

    @abstractmethod
    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        """Defended scores of the images, with bounds that hold for every patch of the threat.

        Args:
            engine: runs the classifier.
            images: (image, channel, height, width) in [0, 1].
            threat: what the attacker may do.
        """

    def decide(
        self,
        engine: Engine,
        images: Tensor,
        threat: PatchThreat,
        threshold: float,
        max_views: int | None = None,
    ) -> Decision:
        """The labels `defended > threshold`: all bounds are computed, unless a defense knows better.

        Args:
            engine: runs the classifier.
            images: (image, channel, height, width) in [0, 1].
            threat: what the attacker may do.
            threshold: in the units of the scores.
            max_views: forward passes per image after which labels stay undecided; None for no limit.
        """
        height, width = images.shape[-2:]
        views = self.views((height, width), threat)
        if max_views is not None and (views is None or views > max_views):
            needs = "an unknown number of" if views is None else views
            raise ValueError(f"{self} needs {needs} views per image, but max_views is {max_views}")
        threshold = as_threshold(threshold)
        bounds = self.bounds(engine, images, threat)
        labels, defended = predict(bounds, threshold), bounds.defended
        counts = None if views is None else np.full(len(images), views)
        return Decision(labels, np.ones_like(labels), defended, defended, counts)

    def views(self, image_size: Size, threat: PatchThreat) -> int | None:
        """Forward passes per image, the image itself included; None where only running it tells."""
        return None

    def region_boxes(
        self, image_size: Size, threat: PatchThreat
    ) -> Int[np.ndarray, "region 4"] | None:
        """Top, left, height and width of every region; None where regions are no boxes."""
        return None
