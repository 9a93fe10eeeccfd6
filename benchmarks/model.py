"""The model and the images that benchmarks share: EfficientNet-Lite0 with 80 classes."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from patchdemux.data import every, open_dataset
from patchdemux.models.loading import load_weights

CLASSES = 80


class Normalised(nn.Module):
    """A model that takes images in [0, 1] and normalises them as ImageNet's models want."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images - self.mean) / self.std)
        return logits


def plain_model(weights: Path | None = None) -> nn.Module:
    """In eval mode; with random weights unless some are given. Images are in [0, 1]."""
    torch.manual_seed(0)
    model = timm.create_model("efficientnet_lite0", pretrained=False, num_classes=CLASSES)
    if weights is not None:
        load_weights(model, weights)
    return Normalised(model).eval()


def photos(count: int, size: int, data: Path | None = None) -> Tensor:
    """The first images of a data set, or random ones."""
    if data is None:
        return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    dataset = open_dataset(str(data), size)
    chosen = every(dataset, max(1, len(dataset) // count))
    return torch.stack([chosen[i] for i in range(count)])
