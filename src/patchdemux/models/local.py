"""Networks that see the image through small windows: a score per class and cell of a map.

They are ordinary classifiers as well: their logits are the mean over all cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.models.libraries import make_timm, timm_input
from patchdemux.threat import Size, as_size


class LocalNet(nn.Module):
    """The mean over a map of local scores.

    Args:
        local: from images to a map of scores (image, class, row, column). It is the layer `local`,
            for the defenses that work on such a map.
    """

    def __init__(self, local: nn.Module) -> None:
        super().__init__()
        self.local = local

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.local(images)
        return scores.mean(dim=(2, 3))


class Bounded(nn.Module):
    """Squeezes any number into a range, smoothly, so that votes can be learned within it."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, scores: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * torch.sigmoid(scores)

    def extra_repr(self) -> str:
        return f"{self.low}, {self.high}"


def local_resnet(
    name: str = "resnet18",
    *,
    narrow_from: str = "layer1",
    stride: int = 8,
    class_names: Sequence[str] | None = None,
    image_size: Size | None = None,
) -> Classifier:
    """A ResNet of timm, untrained, whose cells see little, after BagNet (Brendel and Bethge 2019).

    All convolutions from one stage on become 1 x 1, so that only the stages before it look around.

    Args:
        name: a timm model with stages called `layer1` to `layer4`, such as "resnet10t" or "resnet50".
            One with squeeze-and-excitation sees the whole image in every cell, and no defense on
            local scores will take it.
        narrow_from: the first stage whose convolutions become 1 x 1.
        stride: pixels from one cell to the next: 8, 16 or 32.
        class_names: the model gets a score for each.
        image_size: height and width, if not those of the model's `pretrained_cfg`.
    """
    stages = ("layer1", "layer2", "layer3", "layer4")
    if narrow_from not in stages:
        raise ValueError(f"narrow_from must be one of {stages}, but got {narrow_from!r}")
    try:
        backbone: Any = make_timm(
            name, image_size, num_classes=0, global_pool="", output_stride=stride
        )
        parts = [getattr(backbone, stage) for stage in stages]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no ResNet of timm: {error}") from error
    for part in parts[stages.index(narrow_from) :]:
        narrow(part)
    config, mean, std = timm_input(backbone)
    classes = 1000 if class_names is None else len(class_names)
    judge = nn.Conv2d(backbone.num_features, classes, 1)
    return Classifier(
        LocalNet(nn.Sequential(backbone, judge)),
        class_names=class_names,
        image_size=config if image_size is None else as_size("image_size", image_size),
        mean=mean,
        std=std,
    )


def narrow(module: nn.Module) -> None:
    """Replace all convolutions inside a module by 1 x 1 convolutions with new weights.

    Means over neighbours that do not make the map smaller, which shortcuts have in a dilated ResNet,
    go.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            bias, (rows, columns) = child.bias is not None, child.stride
            options: dict[str, Any] = {
                "stride": (rows, columns),
                "groups": child.groups,
                "bias": bias,
            }
            setattr(module, name, nn.Conv2d(child.in_channels, child.out_channels, 1, **options))
        elif isinstance(child, nn.AvgPool2d) and child.stride in (1, (1, 1)):
            setattr(module, name, nn.Identity())
        else:
            narrow(child)
