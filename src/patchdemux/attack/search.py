"""Attacks without gradients, on whatever answers: ONNX, remote services, any callable.

They see nothing of the victim but its scores. So they are weaker than gradients where there are any,
and their cost is all views of the victim in every step.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from patchdemux.attack.goal import Goal
from patchdemux.attack.places import as_printed, paste
from patchdemux.attack.victims import Victim

Search = Literal["square", "random"]

LARGEST = 0.8
"""Of the patch's area, what the first squares take; the last ones are single pixels."""


def search(
    kind: Search,
    victim: Victim,
    images: Tensor,
    goal: Goal,
    places: Any,
    patches: Tensor,
    random: np.random.Generator,
    *,
    steps: int,
) -> Tensor:
    """The best patches that were seen in so many steps, each compared by the victim's real answer.

    "random" draws whole patches. "square" begins with stripes and replaces one square of the best
    patch so far, in smaller and smaller size, as Square Attack (Andriushchenko et al. 2020) does.
    """
    best = as_printed(patches)
    merit = goal.merit(victim.scores(paste(images, places, best)))
    for step in range(steps):
        if kind == "random":
            tried = drawn(best, random)
        elif step == 0:
            tried = striped(best, random)
        else:
            tried = squared(best, step / steps, random)
        found = goal.merit(victim.scores(paste(images, places, tried)))
        better = torch.from_numpy(found > merit)
        best[better] = tried[better]
        merit = np.maximum(merit, found)
    return best


def drawn(patches: Tensor, random: np.random.Generator) -> Tensor:
    """New patches: half of them of any levels, half of the extreme ones, which move scores most."""
    levels = random.random(patches.shape, dtype=np.float32)
    extreme = random.random((len(patches), 1, 1, 1)) < 0.5
    return as_printed(torch.from_numpy(np.where(extreme, levels.round(), levels))).to(patches)


def striped(patches: Tensor, random: np.random.Generator) -> Tensor:
    """Upright stripes of extreme colors, one pixel wide."""
    count, channels, _, width = patches.shape
    stripes = torch.from_numpy(random.integers(0, 2, (count, channels, 1, width)))
    return stripes.to(patches).expand_as(patches).clone()


def squared(patches: Tensor, progress: float, random: np.random.Generator) -> Tensor:
    """The patches with one square of each in an extreme color."""
    changed = patches.clone()
    count, channels, height, width = patches.shape
    side = max(1, round((LARGEST * height * width) ** 0.5 * (1 - progress) ** 2))
    tall, wide = min(side, height), min(side, width)
    tops = random.integers(0, height - tall, count, endpoint=True)
    lefts = random.integers(0, width - wide, count, endpoint=True)
    colors = torch.from_numpy(random.integers(0, 2, (count, channels, 1, 1))).to(patches)
    for patch, top, left, color in zip(changed, tops, lefts, colors, strict=True):
        patch[:, top : top + tall, left : left + wide] = color
    return changed
