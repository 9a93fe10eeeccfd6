"""A network and images so small that a whole training takes a moment."""

import numpy as np
import torch
from torch import nn

from patchdemux import Classifier
from patchdemux.data.tensors import TensorSet
from patchdemux.training import Recipe

CLASSES = ("red", "green", "blue")
SIZE = 12

QUICK = {"epochs": 2, "batch_size": 4, "masks": (2,), "patch": 0.05, "held_out": 0.2, "rate": 1e-2}


def quick(**settings):
    return Recipe(**{**QUICK, **settings})


def colors(count=30, seed=0, size=SIZE):
    """Noise with bright squares of some of the three colors; the labels are the colors."""
    random = np.random.default_rng(seed)
    images = random.uniform(0, 0.5, (count, 3, size, size)).astype(np.float32)
    targets = random.random((count, 3)) < 0.4
    targets[:3] = np.eye(3)
    for image, label in np.argwhere(targets):
        top, left = random.integers(0, size - 4, 2, endpoint=True)
        images[image, label, top : top + 4, left : left + 4] = 1
    return TensorSet(torch.from_numpy(images), targets, CLASSES, "colors")


def network(norm=True, dropout=0.2, classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, classes),
    )


def classifier(**options):
    return Classifier(network(**options), class_names=CLASSES)
