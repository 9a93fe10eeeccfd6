"""One patch for all images of a data set, as an attacker prints it; saved as PNG and used again."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from patchdemux.attack.attack import (
    CHUNK,
    Attack,
    Attacked,
    judged,
    patch_shape,
    places_of,
    victim_of,
)
from patchdemux.attack.goal import goal_of
from patchdemux.attack.gradient import Scene, ascend
from patchdemux.bounds import ScoreBounds
from patchdemux.demux import PatchDemux
from patchdemux.engine import check_images
from patchdemux.margin import measure_margin
from patchdemux.threat import PatchThreat

Labels = Bool[np.ndarray, "image class"]
"""The labels that matter to the attacker."""


def universal_patch(
    demux: PatchDemux,
    images: Tensor,
    targets: Any,
    how: Attack,
    *,
    defended: bool = True,
    threshold: float = 0.5,
    labels: Labels | None = None,
) -> Tensor:
    """The content (channel, height, width) that does the most harm on all of the images together.

    With a given place the patch is always there, and otherwise at another random place on every image
    in every step, so that it works wherever it is put. Each step takes some of the images.
    """
    if how.method != "gradient":
        raise ValueError(f'a universal patch needs method="gradient", but got {how.method!r}')
    moving = replace(how, place="random", places=1) if isinstance(how.place, str) else how
    images = check_images(images)
    goal = goal_of(how.objective, targets, len(images), threshold, labels)
    # Which views decide is known of an image with a patch at a place, and both change in every step.
    victim = victim_of(demux, replace(how, refresh=0), defended)
    random = np.random.default_rng(how.seed)

    def scene() -> Scene:
        some = np.sort(random.permutation(len(images))[:CHUNK])
        own, shown = goal.of(some), images[some]
        places = places_of(demux, shown, moving, own, None, random)[:, 0]
        return Scene(shown, own, places, np.zeros(len(some), int))

    content = random.random((1, *patch_shape(demux, images)), dtype=np.float32)
    patch = torch.from_numpy(content).to(images.device)
    return ascend(victim, scene, patch, random, how.ascent)[0]


def put(
    demux: PatchDemux,
    images: Tensor,
    targets: Any,
    patch: Tensor,
    how: Attack,
    *,
    defended: bool = True,
    threshold: float = 0.5,
    bounds: ScoreBounds | None = None,
    labels: Labels | None = None,
) -> Attacked:
    """One and the same patch on every image, at the most harmful of the places that `how` names."""
    images = check_images(images)
    wanted = patch_shape(demux, images)
    if tuple(patch.shape) != wanted:
        raise ValueError(
            f"the patch must be (channel, height, width) = {wanted}, but has shape "
            f"{tuple(patch.shape)}"
        )
    if bounds is None and (defended or how.place == "weakest"):
        bounds = demux.bounds(images).widened(measure_margin(demux, images).value)
    goal = goal_of(how.objective, targets, len(images), threshold, labels)
    random = np.random.default_rng(how.seed)
    tries = places_of(demux, images, how, goal, bounds, random)
    patches = patch.to(images).expand(*tries.shape[:2], *wanted)
    return judged(victim_of(demux, how, defended), images, goal, tries, patches, bounds, None)


def save_patch(file: str | PathLike[str], patch: Tensor) -> None:
    """A patch (channel, height, width) as PNG, in 256 levels."""
    image = image_library()
    levels = (patch.detach().cpu().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    if levels.shape[2] not in (1, 3):
        raise ValueError(f"PNG has 1 or 3 channels, but the patch has {levels.shape[2]}")
    image.fromarray(levels.squeeze(2) if levels.shape[2] == 1 else levels).save(file, "PNG")


def load_patch(file: str | PathLike[str], threat: PatchThreat) -> Tensor:
    """A patch of the threat's size from an image file, as floats (channel, height, width) in [0, 1].

    A file of another size is refused: a resized patch is another patch.
    """
    image = image_library()
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no patch {file}")
    with image.open(file) as picture:
        gray = picture.mode in ("L", "1", "I", "F")
        levels = np.array(picture.convert("L" if gray else "RGB"))
    if levels.shape[:2] != (threat.height, threat.width):
        raise ValueError(
            f"{file} has {levels.shape[0]} x {levels.shape[1]} pixels, but the threat is a {threat}"
        )
    return torch.from_numpy(levels.reshape(*levels.shape[:2], -1)).permute(2, 0, 1) / 255


def image_library() -> Any:
    """Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("patches as PNG need Pillow: pip install 'patchdemux[data]'") from error
    return Image
