"""Tiny exact classifiers, and every attack on tiny images.

Weights and pixels are small multiples of 1/2, so all sums are exact in float32, and a score does not
depend on the batch it was computed in.
"""

from itertools import product

import torch
from torch import nn

PIXELS = (0.0, 1.0)


class TinyNet(nn.Module):
    """Random integer weights: pairs of pixels matter together, so masks have real effects."""

    def __init__(self, size, classes, seed, hidden=6):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = nn.Linear(size[0] * size[1], hidden)
        self.last = nn.Linear(hidden, classes)
        for layer, spread in ((self.first, 2), (self.last, 2)):
            for weights in layer.parameters():
                values = torch.randint(-spread, spread + 1, weights.shape, generator=random)
                weights.data = values.float()
        self.views = self.calls = self.largest = 0

    def forward(self, images):
        self.views += len(images)
        self.calls += 1
        self.largest = max(self.largest, len(images))
        return self.last(torch.relu(self.first(images.flatten(1)) - 0.5)) - 0.25


def tiny_images(count, size, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (count, 1, *size), generator=random).float()


def every_attack(image, threat):
    """Every image that a patch of the threat can turn `image` into: all places, all contents.

    Yields the place (top, left) and a batch with one image per content.
    """
    height, width = image.shape[-2:]
    contents = torch.tensor(list(product(PIXELS, repeat=threat.height * threat.width)))
    for top in range(height - threat.height + 1):
        for left in range(width - threat.width + 1):
            attacked = image.repeat(len(contents), 1, 1, 1)
            patch = contents.reshape(-1, 1, threat.height, threat.width)
            attacked[:, :, top : top + threat.height, left : left + threat.width] = patch
            yield (top, left), attacked
