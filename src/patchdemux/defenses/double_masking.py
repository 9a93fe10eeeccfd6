"""Double masking (PatchCleanser, Xiang et al. 2022), for all classes and thresholds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int
from torch import Tensor

from patchdemux.bounds import Center, Guard, ScoreBounds, check_options, median
from patchdemux.certify import exceeds
from patchdemux.classifier import Classifier
from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.schedule import Schedule
from patchdemux.defenses.unions import MOST_REGIONS, Unions, count_sets
from patchdemux.engine import Engine
from patchdemux.inputs import as_threshold, blocks
from patchdemux.masks import MaskSet, as_mask_counts
from patchdemux.threat import PatchThreat, Size


@dataclass(frozen=True)
class DoubleMasking(Defense):
    """Hide every pair of masks; a patch inside one of the masks is hidden in that mask's views.

    The proof is in `ScoreBounds.from_pairs`. Only distinct unions of masks are run: 666 views of an
    image with 6 x 6 masks, and the image itself.

    Against K patches, a "mask" is a union of up to K masks, each of which holds one of the patches;
    the same proof then holds for every placement of all of them. That takes 66,711 views for two
    patches and 6 x 6 masks, 255 for 3 x 3 masks, and 15 for 2 x 2 masks.

    Args:
        masks: rows and columns of masks. More masks are smaller, certify more, and cost more.
        center: "median" is the paper's algorithm. "undefended" has the same certificate, and a clean
            image keeps its own score wherever the bounds allow.
        guard: "both", or one side only: "recall" (nothing can be hidden), "precision" (nothing can
            be invented).
    """

    threat_in_words: ClassVar[str] = "one patch or several, of one shape or many"
    most_patches: ClassVar[int | None] = None

    masks: int | Sequence[int] = (6, 6)
    center: Center = "median"
    guard: Guard = "both"

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", as_mask_counts(self.masks))
        check_options(self.center, self.guard)

    def mask_set(self, image_size: Size, threat: PatchThreat) -> MaskSet:
        """The masks used for images of this size; their boxes are the regions of the bounds."""
        return MaskSet.covering(image_size, threat, self.masks)

    def in_words(self, image_size: Size, threat: PatchThreat) -> str:
        masks = str(self.mask_set(image_size, threat))
        return masks if threat.count == 1 else f"{masks}; unions of {threat.count} hold all patches"

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        regions = self.regions(image_size, threat)
        if threat.count > 1 and regions > MOST_REGIONS:
            raise ValueError(
                f"{threat.count} patches take {self.views(image_size, threat):,} views per image and "
                f"{regions:,} unions of masks as regions, of which at most {MOST_REGIONS:,} are "
                f"supported; take fewer masks"
            )

    def views(self, image_size: Size, threat: PatchThreat) -> int:
        return count_sets(len(self.mask_set(image_size, threat)), 2 * threat.count) + 1

    def regions(self, image_size: Size, threat: PatchThreat) -> int:
        return count_sets(len(self.mask_set(image_size, threat)), threat.count)

    def region_boxes(
        self, image_size: Size, threat: PatchThreat
    ) -> Int[np.ndarray, "region 4"] | None:
        """The masks; None with several patches, whose regions are the unions of as many masks."""
        return self.mask_set(image_size, threat).boxes if threat.count == 1 else None

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        height, width = images.shape[-2:]
        masks = self.mask_set((height, width), threat)
        unions = Unions.of(masks, threat.count)
        clean = engine.scores(images)
        rows = []
        # With several patches, the scores of all views of all images would be large.
        for block in blocks(len(images), len(unions.views)):
            scores = engine.masked_scores(images[block], masks.dense(), unions.views)
            rows.append(unions.rows(scores))
        lower, upper, singles = (np.concatenate(part) for part in zip(*rows, strict=True))
        return ScoreBounds.from_rows(
            lower, upper, singles, clean, center=self.center, guard=self.guard
        )

    def decide(
        self,
        engine: Engine,
        images: Tensor,
        threat: PatchThreat,
        threshold: float,
        max_views: int | None = None,
    ) -> Decision:
        """The labels that `bounds` gives, from all single masks and as many pairs as decide them.

        With several patches, all views are run.
        """
        if threat.count > 1:
            return super().decide(engine, images, threat, threshold, max_views)
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
