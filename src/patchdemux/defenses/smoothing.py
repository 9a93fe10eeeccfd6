"""De-randomized smoothing (Levine and Feizi 2020), for all classes and thresholds at once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.classifier import Classifier
from patchdemux.defenses.base import Defense
from patchdemux.defenses.windows import axis_regions, axis_windows
from patchdemux.engine import Engine
from patchdemux.threat import PatchThreat, Size, as_size

Windows = Literal["columns", "rows", "blocks"]


@dataclass(frozen=True)
class Smoothing(Defense):
    """Show one window of the image at a time, and let the windows vote.

    A label is given when more than a share of the windows are above the threshold. With `k` votes
    needed, that is a comparison of one score, the `k`-th largest of the windows', at every threshold.
    A patch changes only the windows that it touches: at worst all of them fall to minus infinity,
    which leaves the `k`-th largest of the others, or rise to plus infinity, which leaves the others'
    `(k - touched)`-th largest.

    The classifier should be trained on such windows. One with `visible_channel` is told which pixels
    are hidden; `patchdemux.models.drop_hidden_tokens` makes a Vision Transformer compute no others.

    Args:
        windows: bands of "columns" (the paper's choice), bands of "rows", or square "blocks".
        width: pixels across a band, or of the side of a block.
        stride: pixels from one window to the next. Windows go on at the opposite border.
        votes: the share of the windows that must be exceeded. 0.5 is the paper's majority. The
            certificate holds for any; objects that few windows show want a smaller one.
    """

    needs: ClassVar[str] = (
        "a classifier trained on windows of images; better one with visible_channel"
    )

    windows: Windows = "columns"
    width: int = 16
    stride: int = 8
    votes: float = 0.5

    def __post_init__(self) -> None:
        if self.windows not in get_args(Windows):
            raise ValueError(
                f"windows must be one of {get_args(Windows)}, but got {self.windows!r}"
            )
        if not 1 <= self.stride <= self.width:
            raise ValueError(
                f"the stride of windows must be at least 1 and at most their width, or no window "
                f"shows some of the pixels, but got stride {self.stride} and width {self.width}"
            )
        if not 0 <= self.votes < 1:
            raise ValueError(
                f"votes is the share of windows that must be exceeded, at least 0 and below 1, "
                f"but got {self.votes}"
            )

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        super().check(classifier, image_size, threat)
        size = as_size("image_size", image_size)
        tokens = getattr(classifier.model, "token_size", (1, 1))
        for length, token, banded in zip(size, tokens, self._banded(), strict=True):
            if not banded:
                continue
            if self.width >= length:
                raise ValueError(
                    f"windows {self.width} pixels wide hide nothing of {length} pixels; "
                    f"they must be narrower"
                )
            if self.width % token or self.stride % token or length % token:
                raise ValueError(
                    f"windows of width {self.width} and stride {self.stride} on {length} pixels do "
                    f"not align with the model's tokens of {tokens[0]} x {tokens[1]} pixels: all "
                    f"three must be multiples of {token}"
                )

    def in_words(self, image_size: Size, threat: PatchThreat) -> str:
        touched = self.touched(image_size, threat)[1]
        windows = touched.shape[1]
        return (
            f"{windows} windows, of which a {threat} touches at most "
            f"{int(touched.sum(axis=1).max())}; a label takes {votes_needed(windows, self.votes)} votes"
        )

    def hidden(self, image_size: Size) -> Bool[np.ndarray, "window height width"]:
        """What every window hides."""
        rows, columns = self._axes(image_size)
        shown = rows[:, None, :, None] & columns[None, :, None, :]
        return np.asarray(~shown.reshape(-1, rows.shape[1], columns.shape[1]))

    def touched(
        self, image_size: Size, threat: PatchThreat
    ) -> tuple[Int[np.ndarray, "region 4"], Bool[np.ndarray, "region window"]]:
        """Boxes that hold every placement of the patch, and the windows it touches inside each."""
        rows, columns = self._axes(image_size)
        tops, row_touched = axis_regions(rows, threat.height)
        lefts, column_touched = axis_regions(columns, threat.width)
        boxes = [(top, left, h, w) for top, h in tops.tolist() for left, w in lefts.tolist()]
        touched = row_touched[:, None, :, None] & column_touched[None, :, None, :]
        return np.array(boxes), touched.reshape(len(boxes), -1)

    def views(self, image_size: Size, threat: PatchThreat) -> int:
        rows, columns = self._axes(image_size)
        return len(rows) * len(columns) + 1

    def region_boxes(self, image_size: Size, threat: PatchThreat) -> Int[np.ndarray, "region 4"]:
        return self.touched(image_size, threat)[0]

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        height, width = images.shape[-2:]
        hidden, (_, touched) = self.hidden((height, width)), self.touched((height, width), threat)
        clean = engine.scores(images)
        scores = engine.masked_scores(images, hidden, np.arange(len(hidden))[:, None])
        return vote(scores, touched, votes_needed(len(hidden), self.votes), clean)

    def _banded(self) -> tuple[bool, bool]:
        """Whether windows end along the rows' axis, and along the columns'."""
        return self.windows != "columns", self.windows != "rows"

    def _axes(
        self, image_size: Size
    ) -> tuple[Bool[np.ndarray, "rows height"], Bool[np.ndarray, "columns width"]]:
        """The windows along each axis; a single one where they do not end. All pairs are used."""
        rows, columns = (
            axis_windows(length, self.width, self.stride) if banded else np.ones((1, length), bool)
            for length, banded in zip(
                as_size("image_size", image_size), self._banded(), strict=True
            )
        )
        return rows, columns


def votes_needed(windows: int, share: float) -> int:
    """The least number of windows that is more than a share of them, the share as it was written."""
    return int(Fraction(str(float(share))) * windows) + 1


def vote(
    scores: Float[np.ndarray, "image window class"],
    touched: Bool[np.ndarray, "region window"],
    needed: int,
    clean: Float[np.ndarray, "image class"],
) -> ScoreBounds:
    """The vote of the windows at every threshold, with bounds per region by the windows it touches."""
    defended = largest(scores, needed)
    lower = np.full((len(scores), len(touched), scores.shape[2]), -np.inf, scores.dtype)
    upper = -lower
    for region, reached in enumerate(touched):
        others = scores[:, ~reached]
        left = needed - int(reached.sum())
        if needed <= others.shape[1]:
            lower[:, region] = largest(others, needed)
        if left > 0:
            upper[:, region] = largest(others, left)
    return ScoreBounds(clean, defended, lower, upper)


def largest(
    scores: Float[np.ndarray, "image window class"], place: int
) -> Float[np.ndarray, "image class"]:
    """The score at a place, from 1, when the windows' are sorted from the largest down."""
    index = scores.shape[1] - place
    return np.asarray(np.partition(scores, index, axis=1)[:, index])
