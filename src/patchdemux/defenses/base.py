"""The one thing that a defense has to supply: bounds for a batch of images. Labels follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import predict
from patchdemux.classifier import Classifier
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

    It is a frozen dataclass, so that a run records its settings and makes it again from them.

    Attributes:
        threat_in_words: which patches it proves, for people who choose a defense.
        needs: what a classifier must be, for them.
        most_patches: at once; None for any number.
    """

    threat_in_words: ClassVar[str] = "one patch"
    needs: ClassVar[str] = "any classifier"
    most_patches: ClassVar[int | None] = 1

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

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        """Raise a ValueError if the defense cannot prove this threat, or does not fit the classifier.

        It is called before any forward pass, and for every batch of images: it should be quick. As it
        stands here it wants a patch that fits into the image, and no more than `most_patches`; a
        defense with more to ask for begins with this: `super().check(...)`.
        """
        if self.most_patches is not None and threat.count > self.most_patches:
            raise ValueError(
                f"{type(self).__name__} proves {self.threat_in_words}, not a {threat}; "
                f"double masking proves several patches"
            )
        threat.check_fits(image_size)

    def views(self, image_size: Size, threat: PatchThreat) -> int | None:
        """Forward passes per image, the image itself included; None where only running it tells."""
        return None

    def region_boxes(
        self, image_size: Size, threat: PatchThreat
    ) -> Int[np.ndarray, "region 4"] | None:
        """Top, left, height and width of every region; None where regions are no boxes."""
        return None

    def in_words(self, image_size: Size, threat: PatchThreat) -> str:
        """What the settings come to for images of this size, for people."""
        return repr(self)

    def regions(self, image_size: Size, threat: PatchThreat) -> int | None:
        """The number of regions; None where only running it tells."""
        boxes = self.region_boxes(image_size, threat)
        return None if boxes is None else len(boxes)
