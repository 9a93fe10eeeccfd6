"""Tiny exact classifiers, and every attack on tiny images.

Weights and pixels are small multiples of 1/2, so all sums are exact in float32, and a score does not
depend on the batch it was computed in.
"""

from itertools import combinations_with_replacement, product

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


def tiny_images(count, size, seed, channels=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (count, channels, *size), generator=random).float()


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


def placements(size, threat):
    """Every place of all patches together: for each of them top, left, height and width."""
    alone = [
        (top, left, height, width)
        for height, width in threat.all_shapes
        for top in range(size[0] - height + 1)
        for left in range(size[1] - width + 1)
    ]
    return list(combinations_with_replacement(alone, threat.count))


def every_attack_at_once(image, threat):
    """All placements, the first of each one's images, and every image that `image` can turn into.

    An attacked pixel takes the same value in all channels.
    """
    places, starts, attacked = placements(image.shape[-2:], threat), [], []
    for place in places:
        patch = torch.zeros(image.shape[-2:], dtype=torch.bool)
        for top, left, height, width in place:
            patch[top : top + height, left : left + width] = True
        contents = torch.tensor(list(product(PIXELS, repeat=int(patch.sum()))))
        images = image.repeat(len(contents), 1, 1, 1)
        images[:, :, patch] = contents[:, None]
        starts.append(sum(map(len, attacked)))
        attacked.append(images)
    return places, starts, torch.cat(attacked)


class TinyLocalNet(nn.Module):
    """A map of local scores from random integer weights, `local`, of which the logits are the mean.

    Two convolutions, of `kernel` and of 1 x 1, so that pixels matter together. Weights are integers
    and a score is a sum of halves; only the mean over cells is rounded.
    """

    def __init__(self, classes, seed, kernel=2, stride=1, padding=0, hidden=5):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.local = nn.Sequential(
            nn.Conv2d(1, hidden, kernel, stride, padding), nn.ReLU(), nn.Conv2d(hidden, classes, 1)
        )
        for weights in self.local.parameters():
            weights.data = torch.randint(-2, 3, weights.shape, generator=random).float() / 2

    def forward(self, images):
        return self.local(images).mean(dim=(2, 3))


class TinySplitNet(nn.Module):
    """A convolution of 2 x 2, `front`, and a `TinyNet` on what it gives, `back`."""

    def __init__(self, size, classes, seed, channels=2):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.front = nn.Sequential(nn.Conv2d(1, channels, 2), nn.ReLU())
        for weights in self.front.parameters():
            weights.data = torch.randint(-2, 3, weights.shape, generator=random).float()
        self.back = TinyNet((channels * (size[0] - 1), size[1] - 1), classes, seed)

    def forward(self, images):
        return self.back(self.front(images))
