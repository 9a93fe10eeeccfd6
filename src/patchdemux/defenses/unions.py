"""The views of double masking: the distinct unions of masks that are hidden together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Float, Int

from patchdemux.masks import MaskSet

MOST_REGIONS = 2080
"""Regions of which all pairs are tabulated for several patches: with two, those of 8 x 8 masks."""


@dataclass(frozen=True, eq=False)
class Unions:
    """Which masks are hidden together, so that several patches are hidden in some view.

    With one patch, a region is a mask. With K patches, each of which lies inside some mask, it is a
    set of up to K masks. Double masking hides the union of any two regions. Many pairs of regions
    have the same union, which is one view.

    Attributes:
        regions: the masks of every region, the last repeated where they are fewer.
        views: the masks of every distinct union of two regions, some repeated likewise.
        table: the view that hides two regions together.
    """

    regions: Int[np.ndarray, "region k"]
    views: Int[np.ndarray, "view l"]
    table: Int[np.ndarray, "region region"]

    @classmethod
    def of(cls, masks: MaskSet, patches: int = 1) -> Unions:
        """The unions of a mask set for so many patches.

        >>> from patchdemux.threat import PatchThreat
        >>> unions = Unions.of(MaskSet.covering(448, PatchThreat(64, 64), (3, 3)), patches=2)
        >>> len(unions.regions), len(unions.views)
        (45, 255)
        """
        sets = mask_sets(len(masks), patches)
        first, second = np.triu_indices(len(sets))
        if patches == 1:  # pairs of masks are distinct unions as they are
            kept = number = np.arange(len(first))
        else:
            # A set of masks as the bits of a number: the limit on regions keeps masks below 65.
            bits = np.bitwise_or.reduce(np.uint64(1) << sets.astype(np.uint64), axis=1)
            _, kept, number = np.unique(
                bits[first] | bits[second], return_index=True, return_inverse=True
            )
        table = np.empty((len(sets), len(sets)), np.int64)
        table[first, second] = table[second, first] = number
        return cls(sets, np.concatenate([sets[first[kept]], sets[second[kept]]], axis=1), table)

    def rows(
        self, scores: Float[np.ndarray, "image view class"]
    ) -> tuple[
        Float[np.ndarray, "image region class"],
        Float[np.ndarray, "image region class"],
        Float[np.ndarray, "image region class"],
    ]:
        """Least and greatest score of every region with any other, and its score alone."""
        shape = (len(scores), len(self.regions), scores.shape[2])
        lower, upper = np.empty(shape, scores.dtype), np.empty(shape, scores.dtype)
        for region, views in enumerate(self.table):
            row = scores[:, views]
            row.min(axis=1, out=lower[:, region])
            row.max(axis=1, out=upper[:, region])
        return lower, upper, scores[:, np.diagonal(self.table)]


def mask_sets(masks: int, most: int) -> Int[np.ndarray, "set k"]:
    """All sets of one to `most` masks, small ones first; the last mask is repeated to fill a row."""
    most = min(most, masks)
    return np.concatenate(
        [
            np.pad(list(combinations(range(masks), size)), ((0, 0), (0, most - size)), "edge")
            for size in range(1, most + 1)
        ]
    )


def count_sets(masks: int, most: int) -> int:
    """The number of sets of one to `most` masks."""
    return sum(comb(masks, size) for size in range(1, min(most, masks) + 1))
