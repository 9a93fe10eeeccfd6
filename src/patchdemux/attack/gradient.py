"""Projected gradient ascent on the patch's content: steps along the sign, with momentum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from patchdemux.attack.goal import Goal
from patchdemux.attack.places import as_printed, crop, paste
from patchdemux.attack.victims import Victim


@dataclass(frozen=True)
class Ascent:
    """How many steps, the size of the first one, and the share of earlier steps that each keeps."""

    steps: int
    step_size: float
    momentum: float


@dataclass(frozen=True, eq=False)
class Scene:
    """Images with a patch on each: which of the patches, and where."""

    images: Tensor
    goal: Goal
    places: Int[np.ndarray, "image 2"]
    patch: Int[np.ndarray, " image"]


def ascend(
    victim: Victim,
    scene: Callable[[], Scene],
    patches: Tensor,
    random: np.random.Generator,
    how: Ascent,
) -> Tensor:
    """The patches after so many steps, within [0, 1] and in 256 levels.

    The gradient is brought to one size before it joins the velocity, as in the momentum iterative
    method (Dong et al. 2018), and the steps shrink to nothing, so that the end is not a jump.

    Args:
        victim: what is attacked.
        scene: the images of the next step; a patch that is on several images follows them all.
        patches: what to begin with.
        random: draws the views.
        how: the steps.
    """
    velocity = torch.zeros_like(patches)
    for step in range(how.steps):
        now = scene()
        index = torch.from_numpy(now.patch).to(patches.device)
        attacked = paste(now.images, now.places, patches[index])
        slope = victim.gradient(attacked, now.places, now.goal, step, random)
        slope = crop(slope, now.places, victim.demux.threat)
        slope = torch.zeros_like(patches).index_add_(0, index, slope)
        size = slope.abs().mean(dim=(1, 2, 3), keepdim=True)
        velocity = how.momentum * velocity + slope / size.clamp_min(1e-20)
        move = how.step_size * (1 - step / how.steps) * velocity.sign()
        patches = (patches + move).clamp(0, 1)
    return as_printed(patches)
