"""The one thing that a defense has to supply: bounds for a batch of images."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Int
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.engine import Engine
from patchdemux.threat import PatchThreat, Size


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

    def views(self, image_size: Size, threat: PatchThreat) -> int | None:
        """Forward passes per image, the image itself included; None where only running it tells."""
        return None

    def region_boxes(
        self, image_size: Size, threat: PatchThreat
    ) -> Int[np.ndarray, "region 4"] | None:
        """Top, left, height and width of every region; None where regions are no boxes."""
        return None
