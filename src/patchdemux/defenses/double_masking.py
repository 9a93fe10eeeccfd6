"""Double masking (PatchCleanser, Xiang et al. 2022), for all classes and thresholds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from patchdemux.bounds import Center, Guard, ScoreBounds, check_options
from patchdemux.defenses.base import Defense
from patchdemux.engine import Engine
from patchdemux.masks import MaskSet, as_mask_counts
from patchdemux.threat import PatchThreat, Size


@dataclass(frozen=True)
class DoubleMasking(Defense):
    """Hide every pair of masks; a patch inside one of the masks is hidden in that mask's views.

    The proof is in `ScoreBounds.from_pairs`. Only distinct unions of masks are run: 666 views of an
    image with 6 x 6 masks, and the image itself.

    Args:
        masks: rows and columns of masks. More masks are smaller, certify more, and cost more.
        center: "median" is the paper's algorithm. "undefended" has the same certificate, and a clean
            image keeps its own score wherever the bounds allow.
        guard: "both", or one side only: "recall" (nothing can be hidden), "precision" (nothing can
            be invented).
    """

    masks: int | Sequence[int] = (6, 6)
    center: Center = "median"
    guard: Guard = "both"

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", as_mask_counts(self.masks))
        check_options(self.center, self.guard)

    def mask_set(self, image_size: Size, threat: PatchThreat) -> MaskSet:
        """The masks used for images of this size; their boxes are the regions of the bounds."""
        return MaskSet.covering(image_size, threat, self.masks)

    def views(self, image_size: Size, threat: PatchThreat) -> int:
        masks = len(self.mask_set(image_size, threat))
        return masks * (masks + 1) // 2 + 1

    def region_boxes(self, image_size: Size, threat: PatchThreat) -> Int[np.ndarray, "region 4"]:
        return self.mask_set(image_size, threat).boxes

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        height, width = images.shape[-2:]
        masks = self.mask_set((height, width), threat)
        clean = engine.scores(images)
        unions = masks.unions()
        scores = engine.masked_scores(images, masks.dense(), unions)
        # The symmetric table of all pairs, from its upper triangle.
        view = np.empty((len(masks), len(masks)), int)
        view[unions[:, 0], unions[:, 1]] = view[unions[:, 1], unions[:, 0]] = range(len(unions))
        return ScoreBounds.from_pairs(scores[:, view], clean, center=self.center, guard=self.guard)
