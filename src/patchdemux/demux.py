"""The defended classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import Certificate, Method, certify, predict
from patchdemux.classifier import Classifier
from patchdemux.defenses import Defense, DoubleMasking
from patchdemux.engine import Engine, Progress, check_images
from patchdemux.inputs import logit
from patchdemux.threat import PatchThreat, Size, as_size


class PatchDemux(nn.Module):
    """A multi-label classifier that is certifiably robust against a patch.

    It is a module itself: `demux(images)` returns defended scores as logits, so it drops in wherever
    the undefended model stood. Thresholds are probabilities here.

    Args:
        model: a `Classifier`, or any torch module or callable from images (image, channel, height,
            width) in [0, 1] to logits (image, class).
        threat: what the attacker may do, in pixels of the model's input.
        defense: how bounds are proved.
        image_size: height and width of the images; other sizes are then refused.
        fill: the value of hidden pixels, one number or one per channel.
        batch_size: masked views per call of the model; None finds it.
        progress: called with the views done and their total.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        threat: PatchThreat,
        defense: Defense | None = None,
        image_size: Size | None = None,
        fill: float | Sequence[float] = 0.0,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.classifier = Classifier.of(model)
        self.threat = threat
        self.defense = DoubleMasking() if defense is None else defense
        own = self.classifier.image_size
        self.image_size = own if image_size is None else as_size("image_size", image_size)
        if own is not None and self.image_size != own:
            raise ValueError(
                f"image_size is {self.image_size}, but the classifier wants images of {own}"
            )
        self.engine = Engine(self.classifier, fill=fill, batch_size=batch_size, progress=progress)

    def extra_repr(self) -> str:
        return f"threat={self.threat}, defense={self.defense}"

    def bounds(self, images: Tensor) -> ScoreBounds:
        """Defended scores of the images, with an interval per patch region, as logits."""
        images = check_images(images)
        size = tuple(images.shape[-2:])
        if self.image_size is not None and size != self.image_size:
            raise ValueError(
                f"the images have {size[0]} x {size[1]} pixels, but this classifier is defended "
                f"for {self.image_size[0]} x {self.image_size[1]}; resize them first"
            )
        return self.defense.bounds(self.engine, images, self.threat)

    def forward(self, images: Tensor) -> Tensor:
        """Defended scores as logits, where the images are."""
        return torch.from_numpy(self.bounds(images).defended).to(images.device)

    def predict(self, images: Tensor, threshold: float = 0.5) -> Tensor:
        """Labels (image, class): true where the defended probability is above the threshold."""
        at = logit(threshold)
        return torch.from_numpy(predict(self.bounds(images), at)).to(images.device)

    def certify(
        self, images: Tensor, targets: Any, threshold: float = 0.5, method: Method = "class"
    ) -> Certificate:
        """What is guaranteed of the predictions for these images, whatever a patch shows."""
        at = logit(threshold)
        return certify(self.bounds(images), targets, at, method)
