"""Double masking (PatchCleanser, Xiang et al. 2022), for all classes and thresholds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from patchdemux.bounds import Center, Guard, ScoreBounds, check_options
from patchdemux.certify import exceeds
from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.schedule import Schedule
from patchdemux.engine import Engine
from patchdemux.inputs import as_threshold
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

    def decide(
        self,
        engine: Engine,
        images: Tensor,
        threat: PatchThreat,
        threshold: float,
        max_views: int | None = None,
    ) -> Decision:
        """The labels that `bounds` gives, from all single masks and as many pairs as decide them."""
        height, width = images.shape[-2:]
        masks = self.mask_set((height, width), threat)
        count, undefended = len(masks), self.center == "undefended"
        first = count + undefended
        if max_views is not None and max_views < first:
            raise ValueError(f"max_views must be at least {first}, but got {max_views}")
        threshold = as_threshold(threshold)
        hidden = masks.dense()
        # One more mask, which hides nothing, for the score without any.
        scores_of = engine.masked(images, np.concatenate([hidden, np.zeros_like(hidden[:1])]))
        index = np.indices((len(images), first)).reshape(2, -1).T
        scores = scores_of(index).reshape(len(images), first, -1)
        singles = scores[:, :count]
        center = scores[:, -1] if undefended else median(singles)
        max_pairs = None if max_views is None else max_views - first
        schedule = Schedule(singles, center, threshold, self.guard, max_pairs)
        while len(jobs := schedule.next_views(engine.batch.size)):
            schedule.learn(jobs, scores_of(jobs))
        lower, upper = schedule.intervals()
        labels = exceeds(lower, threshold)
        decided = labels | ~exceeds(upper, threshold)
        return Decision(labels, decided, lower, upper, first + schedule.views())


def median(singles: Float[np.ndarray, "image mask class"]) -> Float[np.ndarray, "image class"]:
    """The score that is above a threshold exactly when more than half of the scores are."""
    middle = (singles.shape[1] - 1) // 2
    return np.asarray(np.partition(singles, middle, axis=1)[:, middle])
