"""Windows along one axis of an image, and which of them a patch reaches from where."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int


def axis_windows(length: int, width: int, stride: int) -> Bool[np.ndarray, "window length"]:
    """The pixels of every window: `width` in a row, one window each `stride` pixels.

    A window that reaches over the border goes on at the other one, so that all pixels are in about
    as many windows.
    """
    starts = np.arange(0, length, stride)
    return (np.arange(length) - starts[:, None]) % length < width


def axis_regions(
    windows: Bool[np.ndarray, "window length"], patch: int
) -> tuple[Int[np.ndarray, "region 2"], Bool[np.ndarray, "region window"]]:
    """Regions that hold every placement of a patch, as few as lose nothing.

    Placements from which a patch reaches the same windows need one region only, and so do those from
    which it reaches fewer of these. So the region of a placement grows to both sides for as long as
    no other window is reached, and one that lies inside another is left out.

    Returns:
        First pixel and size of every region, and the windows that a patch in it reaches.
    """
    length = windows.shape[1]
    placements = length - patch + 1
    touched = np.stack([windows[:, p : p + patch].any(axis=1) for p in range(placements)])
    longest: dict[int, int] = {}  # by its first placement, the last one of a region
    for placement, reached in enumerate(touched):
        more = np.flatnonzero((touched & ~reached).any(axis=1))
        first = int(more[more < placement].max(initial=-1)) + 1
        last = int(more[more > placement].min(initial=placements)) - 1
        longest[first] = max(last, longest.get(first, -1))
    # Both ends of the regions that remain grow together, as none of them is inside another.
    spans: list[tuple[int, int]] = []
    for first, last in sorted(longest.items()):
        if not spans or last > spans[-1][1]:
            spans.append((first, last))
    regions = np.array([(first, last - first + patch) for first, last in spans])
    reached = np.array([windows[:, start : start + size].any(axis=1) for start, size in regions])
    return regions, reached
