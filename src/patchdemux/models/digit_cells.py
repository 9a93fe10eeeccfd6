"""Networks of digit scenes for the defenses that look at the cells of a map. Untrained."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from patchdemux.models.digit_net import Residual
from patchdemux.models.local import Bounded, LocalNet

LOW, HIGH = -5.0, 15.0
"""The range of a local score: a quarter of the cells at the top, the rest at the bottom, mean 0."""


def local_net(classes: int = 10) -> LocalNet:
    """Local scores that see 13 x 13 pixels, every 4 pixels, for `LocalVotes` and `RobustMasking`."""
    return LocalNet(
        nn.Sequential(
            *_layer(3, 16, 3),
            *_layer(16, 32, 3, stride=2),
            *_layer(32, 32, 3),
            *_layer(32, 64, 3, stride=2),
            *_layer(64, 128, 1),
            *_layer(128, 128, 1),
            nn.Conv2d(128, classes, 1),
            Bounded(LOW, HIGH),
        )
    )


def split_net(classes: int = 10) -> nn.Sequential:
    """A front whose cells see 7 x 7 pixels, every 2 pixels, and a back, for `FeatureMasking`."""
    judge = nn.Conv2d(64, classes, 1)
    # At first no digit is likely anywhere, as in most scenes.
    nn.init.constant_(judge.get_parameter("bias"), -6.0)
    front = nn.Sequential(*_layer(3, 32, 3, stride=2), *_layer(32, 48, 3), *_layer(48, 32, 1))
    back = nn.Sequential(
        *_layer(32, 48, 3, stride=2),
        *_layer(48, 64, 3, stride=2),
        Residual(64),
        judge,
        SmoothMaximum(),
    )
    return nn.Sequential(OrderedDict(front=front, back=back))


class SmoothMaximum(nn.Module):
    """The best evidence of each class, wherever it is."""

    def forward(self, evidence: Tensor) -> Tensor:
        return torch.logsumexp(evidence.flatten(2), dim=2)


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
