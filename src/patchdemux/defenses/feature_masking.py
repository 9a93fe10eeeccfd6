"""Double masking on a feature map (PatchCURE, Xiang et al. 2024): one front pass for all masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from patchdemux.bounds import Center, Guard, ScoreBounds
from patchdemux.classifier import Classifier
from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.double_masking import DoubleMasking
from patchdemux.defenses.unions import count_sets
from patchdemux.engine import Engine, check_images, device_of
from patchdemux.masks import MaskSet, as_mask_counts
from patchdemux.receptive_field import ReceptiveField, measured
from patchdemux.threat import PatchThreat, Size


@dataclass(frozen=True)
class FeatureMasking(Defense):
    """Hide pairs of masks not of the image but of the output of a layer, whose cells see little.

    The classifier is cut after the layer. Its front runs once per image, and its back once for each
    pair of masks, in which hidden features are 0.

    *Theorem.* What `DoubleMasking` proves of the back against patches of cells, of as many rows and
    columns as a patch of pixels changes at most, holds for the whole classifier against patches of
    pixels. *Proof.* A patch changes only the cells whose windows it meets. Their box is at most as
    large as such a patch of cells, so it is one of those, or lies inside one. The masks hold them all,
    and of several patches each.

    What a patch changes is measured (`patchdemux.receptive_field`). That every placement of the patch
    changes cells inside some mask only is also proved in pixels, each time the masks are made.

    Args:
        layer: the layer after which the classifier is cut, by its name in the model, such as
            "layer1" of a ResNet, "blocks.1" of an EfficientNet, or "0" of an `nn.Sequential`.
        masks: rows and columns of masks.
        center, guard: as in `DoubleMasking`.
        receptive_field: pixels that a cell is said to see along each axis; it is refused if it sees
            more. None says nothing.
    """

    threat_in_words: ClassVar[str] = DoubleMasking.threat_in_words
    most_patches: ClassVar[int | None] = None
    needs: ClassVar[str] = "a layer of local features, each of which sees a small window"

    layer: str = "front"
    masks: int | Sequence[int] = (6, 6)
    center: Center = "median"
    guard: Guard = "both"
    receptive_field: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", self.of_features.masks)

    @property
    def of_features(self) -> DoubleMasking:
        """The defense of the back."""
        return DoubleMasking(self.masks, self.center, self.guard)

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        super().check(classifier, image_size, threat)
        self.covering(classifier, image_size, threat)
        field = measured(classifier, self.layer, image_size, self.receptive_field)[1]
        self.of_features.check(classifier, field.grid, self.feature_threat(field, threat))

    def covering(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> MaskSet:
        """The boxes of pixels in which a patch is hidden by each mask: the regions of the bounds."""
        field = measured(classifier, self.layer, image_size, self.receptive_field)[1]
        masks = self.of_features.mask_set(field.grid, self.feature_threat(field, threat))
        return field.pixels(masks.boxes, threat)

    def feature_threat(self, field: ReceptiveField, threat: PatchThreat) -> PatchThreat:
        """What a patch can do to the features."""
        return PatchThreat(*field.reach(threat), threat.count)

    def views(self, image_size: Size, threat: PatchThreat) -> int:
        """One pass through the front, and at most so many through the back.

        A coarse map may need fewer masks than were asked for.
        """
        rows, columns = as_mask_counts(self.masks)
        return 1 + count_sets(rows * columns, 2 * threat.count) + 1

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        back, features, patch = self._features(engine, images, threat)
        return self.of_features.bounds(back, features, patch)

    def decide(
        self,
        engine: Engine,
        images: Tensor,
        threat: PatchThreat,
        threshold: float,
        max_views: int | None = None,
    ) -> Decision:
        """The labels that `bounds` gives, from as many pairs of masks as decide them."""
        back, features, patch = self._features(engine, images, threat)
        return self.of_features.decide(back, features, patch, threshold, max_views)

    def _features(
        self, engine: Engine, images: Tensor, threat: PatchThreat
    ) -> tuple[Engine, Tensor, PatchThreat]:
        """What double masking takes: an engine for the back, its input, and the threat to that."""
        images = check_images(images)
        classifier = engine.classifier
        height, width = images.shape[-2:]
        self.covering(classifier, (height, width), threat)
        parts, field = measured(classifier, self.layer, (height, width), self.receptive_field)
        shape: tuple[int, ...] = ()

        def front(first: int, last: int) -> Float[np.ndarray, "job value"]:
            nonlocal shape
            features = parts.front(images[first:last].to(device).clone())
            shape = tuple(features.shape[1:])
            found: np.ndarray = features.flatten(1).float().cpu().numpy()
            broken = np.flatnonzero(~np.isfinite(found).all(axis=1))
            if len(broken):
                raise ValueError(
                    f"the layer {self.layer!r} does not give finite features of image "
                    f"{first + broken[0]}"
                )
            return found

        device = device_of(classifier, images)
        # Its batches take no part in the search for the best size of those of the back.
        run = Engine(classifier, batch_size=engine.batch.size, progress=engine.progress)
        features = run.batched(len(images), front)
        rest = Classifier(parts.back, class_names=classifier.class_names)
        rest.channels_last = classifier.channels_last
        back = BackEngine(rest, progress=engine.progress)
        back.batch = engine.batch
        return (
            back,
            torch.from_numpy(features).reshape(len(images), *shape),
            self.feature_threat(field, threat),
        )


class BackEngine(Engine):
    """Runs the back of a classifier on masked features."""

    def accepted(self, images: Tensor) -> Tensor:
        """Features are any finite numbers."""
        return images
