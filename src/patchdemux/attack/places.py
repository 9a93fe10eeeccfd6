"""Where the patch is put, and putting it there."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from patchdemux.attack.goal import Goal
from patchdemux.bounds import ScoreBounds
from patchdemux.threat import PatchThreat

NamedPlace = Literal["weakest", "every", "random"]
NAMED_PLACES: tuple[NamedPlace, ...] = get_args(NamedPlace)
Place = NamedPlace | tuple[int, int]
Places = Int[np.ndarray, "image try 2"]
"""Row and column of the patch's top left corner."""


def choose_places(
    place: Place,
    count: int,
    images: int,
    image_size: tuple[int, int],
    threat: PatchThreat,
    goal: Goal,
    boxes: Int[np.ndarray, "region 4"] | None,
    bounds: ScoreBounds | None,
    random: np.random.Generator,
) -> Places:
    """The places that are tried on each image.

    Args:
        place: "weakest" takes the regions where the bounds allow the most, one place in each;
            "every" a place in every region; "random" any places; two numbers are a place.
        count: how many; "every" has as many as there are regions, and a given place is only one.
        images, image_size: how many, and of which size.
        threat: the patch.
        goal: by which regions are ranked.
        boxes: the regions.
        bounds: what was proved of the clean images.
        random: draws the places.
    """
    room = np.array([image_size[0] - threat.height, image_size[1] - threat.width])
    if not isinstance(place, str):
        corner = np.array(place)
        if corner.shape != (2,) or (corner < 0).any() or (corner > room).any():
            raise ValueError(
                f"a {threat} fits with its top left corner at rows 0 to {room[0]} and columns 0 to "
                f"{room[1]} of an image of {image_size[0]} x {image_size[1]}, but got {place!r}"
            )
        return np.tile(corner, (images, 1, 1))
    if place == "random":
        return random.integers(0, room, size=(images, count, 2), endpoint=True)
    if boxes is None:
        raise ValueError(f'place={place!r} needs a defense whose regions are boxes; try "random"')
    if place == "every":
        ranked = np.tile(np.arange(len(boxes)), (images, 1))
    elif bounds is None:
        raise ValueError('place="weakest" needs the bounds of the clean images')
    else:
        ranked = weakest_regions(bounds, goal)[:, np.arange(count) % len(boxes)]
    return places_in(boxes[ranked], room, threat, random)


def weakest_regions(bounds: ScoreBounds, goal: Goal) -> Int[np.ndarray, "image region"]:
    """All regions, those first where a patch could do most for the goal if the bounds were attained.

    A true label has its lower bound there, a false one its upper bound. Infinite bounds count as
    scores far beyond any other.
    """
    regions = bounds.lower.shape[1]
    order = np.empty((len(bounds), regions), int)
    for image in range(len(bounds)):
        own = goal.of(np.full(regions, image))
        worst = np.where(own.targets, bounds.lower[image], bounds.upper[image])
        merit = own.merit(np.clip(worst, -1e6, 1e6))
        order[image] = np.argsort(-merit, kind="stable")
    return order


def places_in(
    boxes: Int[np.ndarray, "image try 4"],
    room: Int[np.ndarray, " side"],
    threat: PatchThreat,
    random: np.random.Generator,
) -> Places:
    """A random place in each box, or up to one pixel beyond its edges.

    Beyond, because that is where a mask that is one pixel too small leaves its hole.
    """
    corner, size = boxes[..., :2], boxes[..., 2:]
    spare = np.maximum(size - (threat.height, threat.width), 0)
    drawn = corner + random.integers(-1, spare + 1, endpoint=True)
    return np.clip(drawn, 0, room)


def paste(images: Tensor, places: Any, patches: Tensor) -> Tensor:
    """The images with the patches on them, one each; not a pixel outside is touched."""
    attacked = images.clone()
    height, width = patches.shape[-2:]
    for image, (top, left), patch in zip(attacked, places, patches, strict=True):
        image[:, top : top + height, left : left + width] = patch
    return attacked


def crop(images: Tensor, places: Any, threat: PatchThreat) -> Tensor:
    """What the images show where the patches are."""
    return torch.stack(
        [
            image[:, top : top + threat.height, left : left + threat.width]
            for image, (top, left) in zip(images, places, strict=True)
        ]
    )


def as_printed(patches: Tensor) -> Tensor:
    """The patches in the 256 levels of an image file, so that a saved one is the very same."""
    return (patches.clamp(0, 1) * 255).round() / 255
