"""What the defender hides: a set of rectangles that together cover every placement of the patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from patchdemux.threat import PatchThreat, Size, as_integers, as_size


def covering_intervals(length: int, patch: int, masks: int) -> tuple[int, list[int]]:
    """Size and start positions of the masks along one axis (PatchCleanser's R-covering set).

    A mask of size `patch + stride - 1` holds the patch at `stride` consecutive positions, and the
    `length - patch + 1` positions are shared out among `masks` masks. The last one is moved back to
    end at the border. Rounding the stride up can leave fewer masks than asked for.
    """
    positions = length - patch + 1
    stride = -(-positions // masks)
    size = patch + stride - 1
    starts = [min(start, length - size) for start in range(0, positions, stride)]
    return size, starts


@dataclass(frozen=True, eq=False)
class MaskSet:
    """Rectangles such that every placement of the threat's patch lies wholly inside at least one.

    That is *proved* whenever a set is made, by checking every position of every shape of the patch.
    Of several patches each lies inside a mask, so that a union of as many masks holds them all.

    Attributes:
        image_size: height and width of the images, in pixels.
        threat: the patch that is covered.
        boxes: one row per mask: top, left, height, width.
        grid: rows and columns of masks, where the set is a grid.
        requested: the rows and columns that were asked for.
    """

    image_size: tuple[int, int]
    threat: PatchThreat
    boxes: Int[np.ndarray, "mask 4"]
    grid: tuple[int, int] | None = None
    requested: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size("image_size", self.image_size))
        boxes = np.array(self.boxes)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.issubdtype(boxes.dtype, np.integer):
            raise ValueError(
                "boxes must be an integer array (mask, [top, left, height, width]), but got "
                f"shape {boxes.shape} of {boxes.dtype}"
            )
        boxes.setflags(write=False)
        object.__setattr__(self, "boxes", boxes)
        self._prove_coverage()

    @classmethod
    def covering(
        cls, image_size: Size, threat: PatchThreat, masks: int | Sequence[int] = (6, 6)
    ) -> MaskSet:
        """The R-covering set of PatchCleanser with `masks` (rows, columns) of masks.

        Of a patch of several shapes, it covers the rectangle that holds them all: a grid that covers
        the tallest and the widest shape covers that as well.

        >>> masks = MaskSet.covering(448, PatchThreat(64, 64))
        >>> len(masks), masks.boxes[0].tolist(), len(masks.unions())
        (36, [0, 0, 128, 128], 666)
        """
        height, width = as_size("image_size", image_size)
        rows, columns = as_mask_counts(masks)
        if not isinstance(threat, PatchThreat):
            raise TypeError(f"threat must be a PatchThreat, but got {threat!r}")
        threat.check_fits(image_size)
        mask_height, tops = covering_intervals(height, threat.height, rows)
        mask_width, lefts = covering_intervals(width, threat.width, columns)
        boxes = [(top, left, mask_height, mask_width) for top in tops for left in lefts]
        grid = (len(tops), len(lefts))
        return cls((height, width), threat, np.array(boxes), grid, (rows, columns))

    def _prove_coverage(self) -> None:
        """Mark, for every mask, the patch positions it holds; every position must be marked."""
        height, width = self.image_size
        ends = self.boxes[:, :2] + self.boxes[:, 2:]
        if (self.boxes[:, :2] < 0).any() or (ends > (height, width)).any():
            raise ValueError(f"a mask reaches outside the image of {height} x {width} pixels")
        for tall, wide in self.threat.all_shapes:
            patch = PatchThreat(tall, wide)
            covered = np.zeros((max(height - tall + 1, 0), max(width - wide + 1, 0)), bool)
            if covered.size == 0:
                raise ValueError(f"a {patch} does not fit into an image of {height} x {width}")
            for (top, left, _, _), (bottom, right) in zip(self.boxes, ends, strict=True):
                last_row, last_column = bottom - tall, right - wide
                covered[top : max(last_row + 1, top), left : max(last_column + 1, left)] = True
            if not covered.all():
                top, left = np.argwhere(~covered)[0]
                raise ValueError(
                    f"the masks do not cover the threat: a {patch} with its top left corner at row "
                    f"{top}, column {left} lies inside no mask (and {int((~covered).sum()) - 1} "
                    f"other positions); no certificate can be given with these masks"
                )

    def __len__(self) -> int:
        return len(self.boxes)

    def __str__(self) -> str:
        height, width = self.image_size
        grid = f" ({self.grid[0]} x {self.grid[1]})" if self.grid else ""
        sizes = {(int(h), int(w)) for h, w in self.boxes[:, 2:]}
        size = " or ".join(f"{h} x {w}" for h, w in sorted(sizes))
        text = (
            f"{len(self)} masks{grid} of {size} pixels on images of {height} x {width}, "
            f"proved to cover every {self.threat.single}"
        )
        if self.requested != self.grid and self.requested is not None:
            asked = f"{self.requested[0]} x {self.requested[1]}"
            text += f"; {asked} were asked for, but so many different masks are not needed"
        return text

    def dense(self) -> Bool[np.ndarray, "mask height width"]:
        """The masks as images: true where a pixel is hidden."""
        hidden = np.zeros((len(self), *self.image_size), bool)
        for mask, (top, left, height, width) in zip(hidden, self.boxes, strict=True):
            mask[top : top + height, left : left + width] = True
        return hidden

    def unions(self) -> Int[np.ndarray, "pair 2"]:
        """The distinct unordered pairs of masks, each mask with itself included: M (M + 1) / 2."""
        return np.stack(np.triu_indices(len(self)), axis=1)


def as_mask_counts(masks: int | Sequence[int]) -> tuple[int, int]:
    """`masks` as (rows, columns), each at least one."""
    pair = as_integers(masks)
    if pair is None:
        raise ValueError(
            f"masks must be one integer or (rows, columns), such as (6, 6), but got {masks!r}"
        )
    rows, columns = pair
    if rows < 1 or columns < 1:
        raise ValueError(f"masks must have at least 1 row and 1 column, but got {rows} x {columns}")
    return rows, columns
