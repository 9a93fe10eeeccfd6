"""The small networks of digit scenes: one for each family of defenses."""

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = _convolution(channels, channels)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(features + self.second(torch.relu(self.first(features))))


class DigitNet(nn.Module):
    """Map images (image, channel, height, width) with values in [0, 1] to logits (image, 10).

    Args:
        classes: the number of logits.
        channels: 3, or 4 for a network that is told which pixels are visible.
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        judge = nn.Conv2d(64, classes, 1)
        # At first no digit is likely anywhere, as in most scenes.
        nn.init.constant_(judge.get_parameter("bias"), -6.0)
        self.evidence = nn.Sequential(
            _convolution(channels, 16, stride=2),
            nn.ReLU(),
            _convolution(16, 32, stride=2),
            nn.ReLU(),
            Residual(32),
            _convolution(32, 64, stride=2),
            nn.ReLU(),
            Residual(64),
            Residual(64),
            judge,
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        # A digit is local, so its best evidence anywhere decides (a smooth maximum over places).
        evidence: Tensor = self.evidence(images.contiguous(memory_format=torch.channels_last))
        return evidence.flatten(2).logsumexp(dim=2)


def interval_net(classes: int = 10) -> nn.Sequential:
    """An untrained network of digit scenes through which intervals can go, for `IntervalBounds`.

    Few and wide layers, as every layer makes intervals wider.
    """
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 96),
        nn.ReLU(),
        nn.Linear(96, classes),
    )


def digit_net() -> DigitNet:
    """Return the network with the weights that ship with the package, ready to classify."""
    net = DigitNet()
    net.load_state_dict(load((files(__package__) / "weights" / "digits.safetensors").read_bytes()))
    return net.eval()
