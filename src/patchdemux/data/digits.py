"""Digit scenes: a small multi-label task made of real handwritten digits.

A scene is a noisy background with one to four different digits, each written one to six times (as
the things in a photograph come alone and large, or in groups and small), in colors of their own;
its labels are the digits that appear. The scans are scikit-learn's (1797 of 8x8 pixels), and each
of them belongs to one split only, so a test scene never shows a scan that a training scene showed.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

IMAGE_SIZE = 62
CHANCE_OF_DIFFERENT = (0.5, 0.3, 0.15, 0.05)  # of one, two, three and four different digits
MOST_COPIES = 6  # of one digit

CLASS_NAMES = tuple("0123456789")

# Of every ten scans of a class, the i-th belongs to the i-th split here.
_SPLIT_OF_TENTH = ("train",) * 7 + ("validation",) + ("test",) * 2
_SPLITS = ("train", "validation", "test")

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Box(NamedTuple):
    """Where a digit stands in its scene, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def meets(self, other: "Box") -> bool:
        return (
            self.top < other.top + other.height
            and other.top < self.top + self.height
            and self.left < other.left + other.width
            and other.left < self.left + self.width
        )


@dataclass(frozen=True)
class DigitScenes:
    """Scenes and the digits that appear in them."""

    images: Tensor  # (image, 3, height, width), float32 in [0, 1]
    targets: np.ndarray[Any, np.dtype[np.uint8]]  # (image, class), 1 where the digit appears
    class_names: tuple[str, ...] = CLASS_NAMES


def digit_scenes(count: int, split: str = "test", seed: int = 0) -> DigitScenes:
    """Make `count` scenes of one split: "train", "validation" or "test".

    The same arguments always give the same scenes, and scene i does not depend on `count`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, not {split!r}")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, not {seed}")
    scans, labels = source_scans(split)
    scans_of = [scans[labels == label] for label in range(len(CLASS_NAMES))]
    images = np.empty((count, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.float32)
    targets = np.zeros((count, len(CLASS_NAMES)), dtype=np.uint8)
    for index in range(count):
        rng = np.random.default_rng((seed, _SPLITS.index(split), index))
        images[index] = _background(rng)
        for label, box in draw_layout(rng):
            _write(rng, images[index], rng.choice(scans_of[label]), box)
            targets[index, label] = 1
    return DigitScenes(torch.from_numpy(images), targets)


@cache
def source_scans(split: str) -> tuple[Floats, Integers]:
    """Return the split's scans (scan, 8, 8), ink in [0, 1], and their labels (scan,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "digit scenes need scikit-learn: pip install 'patchdemux[demo]'"
        ) from error
    scans, labels = load_digits(return_X_y=True)
    place_in_class = np.empty(len(labels), dtype=np.int64)
    for label in range(len(CLASS_NAMES)):
        place_in_class[labels == label] = np.arange(np.sum(labels == label))
    mine = np.array(_SPLIT_OF_TENTH)[place_in_class % 10] == split
    return scans[mine].reshape(-1, 8, 8).astype(np.float32) / 16, labels[mine].astype(np.int64)


def draw_layout(rng: np.random.Generator) -> list[tuple[int, Box]]:
    """Draw the digits of one scene: their labels and their boxes, which do not overlap."""
    different = 1 + rng.choice(len(CHANCE_OF_DIFFERENT), p=CHANCE_OF_DIFFERENT)
    wanted: list[tuple[int, int]] = []
    for label in rng.permutation(len(CLASS_NAMES))[:different].tolist():
        copies = rng.integers(1, MOST_COPIES, endpoint=True)
        # One alone is 16 to 48 pixels high, one of six is 9 to 14.
        heights = rng.integers(8 + 8 // copies, 8 + 40 // copies, size=copies, endpoint=True)
        wanted += [(height, label) for height in heights.tolist()]
    layout: list[tuple[int, Box]] = []
    for height, label in sorted(wanted, reverse=True):
        width = int(height * rng.uniform(0.8, 1.0))
        room = (IMAGE_SIZE - height, IMAGE_SIZE - width)
        # A digit that finds no free place is left out; the first and largest always finds one.
        for top, left in rng.integers(room, size=(30, 2), endpoint=True).tolist():
            box = Box(top, left, height, width)
            if not any(box.meets(other) for _, other in layout):
                layout.append((label, box))
                break
    return layout


def _background(rng: np.random.Generator) -> Floats:
    """Return a dark, uneven, noisy background (3, height, width)."""
    coarse = rng.uniform(0.1, 0.5, size=(3, 4, 4)).astype(np.float32)
    spread = _resampling(4, IMAGE_SIZE)
    noise = rng.standard_normal((3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.float32)
    background: Floats = (spread @ coarse @ spread.T + 0.08 * noise).clip(0, 1)
    return background


def _write(rng: np.random.Generator, image: Floats, scan: Floats, box: Box) -> None:
    """Write one digit into the image, in a bright color of its own."""
    color = rng.uniform(0.3, 1.0, size=(3, 1, 1)).astype(np.float32)
    color[rng.integers(3)] = 1.0
    ink = _resampling(8, box.height) @ scan @ _resampling(8, box.width).T
    region = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
    region += ink * (color - region)


@cache
def _resampling(source: int, target: int) -> Floats:
    """Return the matrix (target, source) that resamples one axis linearly."""
    places = (np.arange(target) + 0.5) * source / target - 0.5
    distances = np.abs(places.clip(0, source - 1)[:, None] - np.arange(source))
    return (1 - distances).clip(0, 1).astype(np.float32)
