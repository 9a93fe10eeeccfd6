"""The model and the images that benchmarks share: EfficientNet-Lite0 with the 80 classes of MS-COCO."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from patchdemux.data import every, open_dataset
from patchdemux.models.coco import WEIGHTS, untrained
from patchdemux.models.loading import load_weights

CLASSES = 80


class Normalised(nn.Module):
    """A model that takes images in [0, 1] and normalises them, as a plain module."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images - self.mean) / self.std)
        return logits


def plain_model(weights: Path | None = None) -> nn.Module:
    """In eval mode, with the given weights, else those that ship with the package, else random ones."""
    torch.manual_seed(0)
    classifier = untrained()
    path = weights_of(weights)
    if path is not None:
        load_weights(classifier.model, path)
    assert isinstance(classifier.model, nn.Module)
    return Normalised(classifier.model, classifier.mean, classifier.std).eval()


def weights_of(given: Path | None) -> Path | None:
    """The file that `plain_model` reads."""
    shipped = Path(str(WEIGHTS))
    return given or (shipped if shipped.is_file() else None)


def told(weights: Path | None, data: Path | None) -> str:
    """Which weights and images a benchmark had, in words."""
    path = weights_of(weights)
    source = "random" if path is None else "given" if weights else "shipped"
    return f"{source} weights, {'random images' if data is None else data.name}"


def photos(count: int, size: int, data: Path | None = None) -> Tensor:
    """Images spread over a data set, or random ones."""
    if data is None:
        return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    dataset = open_dataset(str(data), size)
    chosen = every(dataset, max(1, len(dataset) // count))
    return torch.stack([chosen[i] for i in range(min(count, len(chosen)))])
