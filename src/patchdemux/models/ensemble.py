"""Binary models side by side: one classifier with as many classes as there are models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier


def from_binary_models(models: Sequence[Callable[[Tensor], Tensor]], **options: Any) -> Classifier:
    """One classifier out of a model per class.

    It is the paper's way to use defenses that restrict the architecture of a single-label model.

    Args:
        models: one per class, each with its logit as answer, (image,) or (image, 1), or with the
            logits of "no" and "yes", (image, 2). A member may be a `Classifier` with a normalisation
            of its own.
        options: of `Classifier`, such as `class_names` and `image_size`.
    """
    return Classifier(BinaryModels(models), **options)


class BinaryModels(nn.Module):
    """From images to one logit per member."""

    def __init__(self, models: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        if not models:
            raise ValueError("an ensemble needs at least one binary model")
        self.members = nn.ModuleList(model for model in models if isinstance(model, nn.Module))
        self._models = list(models)

    def forward(self, images: Tensor) -> Tensor:
        answers = (model(images) for model in self._models)
        return torch.stack([one_logit(a, i, len(images)) for i, a in enumerate(answers)], dim=1)


def one_logit(answer: Tensor, member: int, images: int) -> Tensor:
    """The logit of "yes" in a binary model's answer."""
    shape = tuple(answer.shape)
    if shape in ((images,), (images, 1)):
        return answer.reshape(images)
    if shape == (images, 2):
        return answer[:, 1] - answer[:, 0]
    raise ValueError(
        f"binary model {member} must answer (image,), (image, 1) or (image, 2) for {images} images, "
        f"but answered {shape}"
    )
