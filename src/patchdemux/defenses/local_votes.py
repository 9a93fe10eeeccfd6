"""Defenses that add up local scores, each of which sees a small window of the image."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import frexp, isfinite, ldexp
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.classifier import Classifier
from patchdemux.defenses.base import Defense
from patchdemux.engine import Engine, check_finite, check_images, device_of
from patchdemux.receptive_field import ReceptiveField, measured
from patchdemux.threat import PatchThreat, Size

Votes = Int[np.ndarray, "image class row column"]
Table = Int[np.ndarray, "image class row1 column1"]
Sums = Int[np.ndarray, "image class box"]
Boxes = Int[np.ndarray, "box 4"]
Region = Int[np.ndarray, "image class region"]
Aggregates = tuple[Int[np.ndarray, "image class"], Region, Region]
"""Of the votes as they are, and the least and the greatest with a region in the attacker's hands."""

BITS = 24
"""Votes are rounded to so many bits, as float32 has for the largest of them."""


@dataclass(frozen=True)
class LocalEvidence(Defense):
    """A patch changes only the local scores whose windows it meets, and each within a known range.

    A layer of the classifier gives a *vote* per image, class and cell of a map. Votes are clamped into
    [low, high], so they lie there whatever a patch shows, and rounded to whole multiples of a small
    step. The defended score is an *aggregate* of them that never decreases when a vote rises.

    *Theorem.* Let a patch in region `r` change at most the cells `A(r)`. For every content of it,

        aggregate(votes with A(r) at low) <= defended <= aggregate(votes with A(r) at high).

    *Proof.* All other votes are those of the clean image, those of A(r) lie within [low, high], and
    the aggregate is monotone. Both ends are what votes of that range can reach.

    It holds in floating point too, to the last bit: votes are integers, sums of them are exact, and
    the step from their aggregate to a score is one monotone function, the same for all three.

    What a patch can change is measured (`patchdemux.receptive_field`), never believed. Regions are the
    largest sets of cells that a placement of the patch can change.

    Args:
        layer: the layer that gives the votes, by its name in the model: (image, class, row, column).
        low, high: the range of a vote.
        receptive_field: pixels that a vote is said to see along each axis; it is refused if it sees
            more. None says nothing.
    """

    needs: ClassVar[str] = "a layer of local scores, each of which sees a small window"

    layer: str = "local"
    low: float = -10.0
    high: float = 10.0
    receptive_field: int | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = float(getattr(self, name))
            object.__setattr__(self, name, value)
            if not isfinite(value):
                raise ValueError(f"{name} must be a finite number, but got {value}")
        if not self.low < self.high:
            raise ValueError(
                f"the range of a vote is from low to a higher high, but got [{self.low}, {self.high}]"
            )

    @abstractmethod
    def aggregate(self, votes: Votes, boxes: Boxes, patch: tuple[int, int]) -> Aggregates:
        """The aggregate of the votes, and its ends when those inside each box move to low and high.

        Args:
            votes: in whole steps.
            boxes: of cells: top, left, height, width.
            patch: rows and columns of cells that a patch changes at most.
        """

    def check(self, classifier: Classifier, image_size: Size, threat: PatchThreat) -> None:
        super().check(classifier, image_size, threat)
        self.field(classifier, image_size).reach(threat)

    def field(self, classifier: Classifier, image_size: Size) -> ReceptiveField:
        """What each vote sees, measured."""
        return measured(classifier, self.layer, image_size, self.receptive_field)[1]

    def views(self, image_size: Size, threat: PatchThreat) -> int:
        return 1

    def bounds(self, engine: Engine, images: Tensor, threat: PatchThreat) -> ScoreBounds:
        height, width = images.shape[-2:]
        parts, field = measured(
            engine.classifier, self.layer, (height, width), self.receptive_field
        )
        patch = field.reach(threat)
        images = check_images(images)
        device = device_of(engine.classifier, images)
        owners = np.arange(len(images))
        cells = field.grid[0] * field.grid[1]

        def compute(first: int, last: int) -> Float[np.ndarray, "job value"]:
            votes = parts.front(images[first:last].to(device).clone())
            # The back may write into what it is given.
            flat = votes.flatten(1).float().cpu().numpy().copy()
            logits = engine.classifier.checked(images[first:last], parts.back(votes))
            scores = logits.float().cpu().numpy()
            check_finite(scores, first, owners)
            if flat.shape[1] != scores.shape[1] * cells:
                raise ValueError(
                    f"the layer {self.layer!r} must have a channel per class, but it has "
                    f"{votes.shape[1]} for {scores.shape[1]} classes"
                )
            check_finite(flat.reshape(*scores.shape, -1).sum(axis=2), first, owners)
            return np.concatenate([scores, flat], axis=1)

        found = engine.batched(len(images), compute)
        classes = found.shape[1] // (1 + cells)
        votes = self.steps(found[:, classes:].reshape(len(images), classes, *field.grid))
        return self.of_votes(votes, field.regions(threat), patch, found[:, :classes])

    def steps(self, votes: Float[np.ndarray, "image class row column"]) -> Votes:
        """The votes, clamped into their range, in whole steps."""
        whole = np.rint(votes.astype(np.float64) / self.step)
        return whole.clip(*self.ends).astype(np.int64)

    @property
    def step(self) -> float:
        """The power of 2 of which all votes are multiples."""
        return ldexp(1.0, frexp(max(abs(self.low), abs(self.high)))[1] - BITS)

    @property
    def ends(self) -> tuple[int, int]:
        """The range of a vote, in steps."""
        return round(self.low / self.step), round(self.high / self.step)

    def of_votes(
        self,
        votes: Votes,
        boxes: Boxes,
        patch: tuple[int, int],
        clean: Float[np.ndarray, "image class"] | None = None,
    ) -> ScoreBounds:
        """The bounds that votes prove, with the cells of each box in the hands of the attacker."""
        cells = votes.shape[2] * votes.shape[3]
        defended, lower, upper = (
            # A mean over all cells, in the units of the scores; every step of it is monotone.
            (aggregate.astype(np.float64) * self.step / cells).astype(np.float32)
            for aggregate in self.aggregate(votes, boxes, patch)
        )
        return ScoreBounds(clean, defended, lower.swapaxes(1, 2), upper.swapaxes(1, 2))


@dataclass(frozen=True)
class LocalVotes(LocalEvidence):
    """The mean of bounded local votes (as BagCert, Metzen and Yatsura 2021), for each class by itself.

    `defended` is the mean over all cells. The bounds are the mean with the touched votes at an end of
    their range; see `LocalEvidence` for the proof. One pass per image.
    """

    def aggregate(self, votes: Votes, boxes: Boxes, patch: tuple[int, int]) -> Aggregates:
        low, high = self.ends
        total = votes.sum(axis=(2, 3))
        untouched = total[..., None] - box_sums(summed(votes), boxes)
        area = boxes[:, 2] * boxes[:, 3]
        return total, untouched + area * low, untouched + area * high


@dataclass(frozen=True)
class RobustMasking(LocalEvidence):
    """PatchGuard's robust masking (Xiang et al. 2021), lifted to every class and threshold.

    PatchGuard sums the local evidence of each class, which it clips to be at least 0, except for that
    inside the window with the largest sum, and predicts the class with the largest rest. One label of
    many is a problem of two classes, yes and no: a positive vote is evidence for yes, a negative one
    for no. With `u+ = max(u, 0)`, `u- = max(-u, 0)`, and over all windows `w` as large as what a
    patch can change,

        rest(e) = sum of e - max over w of (sum of e in w) = min over w of (sum of e outside w)
        defended = (rest(u+) - rest(u-)) / number of cells

    PatchGuard answers yes exactly when `defended > 0`, and the other thresholds weigh the two classes
    differently. With `low = 0` there is no evidence for no, and `defended` is the masked sum alone.

    *It is monotone*: each sum outside a window never decreases when a piece of evidence rises, so
    their minimum `rest` does not either; `u+` rises and `u-` falls with a vote. So the theorem of
    `LocalEvidence` holds for every threshold, and gives, in closed form, with `|.|` counting cells,

        least rest(e)    = min over w of (sum of e outside both w and A(r))
        greatest rest(e) = min over w of (sum of e outside both w and A(r) + most * |A(r) outside w|)

    where `most` is `high` for yes and `-low` for no. The first is PatchGuard's lower bound. A window
    that holds A(r) makes the second at most PatchGuard's upper bound, the sum outside that window,
    which holds for unbounded evidence too.
    """

    def aggregate(self, votes: Votes, boxes: Boxes, patch: tuple[int, int]) -> Aggregates:
        low, high = self.ends
        yes = masked_sums(votes.clip(min=0), boxes, patch, max(low, 0), max(high, 0))
        no = masked_sums((-votes).clip(min=0), boxes, patch, max(-high, 0), max(-low, 0))
        return yes[0] - no[0], yes[1] - no[2], yes[2] - no[1]


def masked_sums(
    evidence: Votes, boxes: Boxes, window: tuple[int, int], least: int, most: int
) -> Aggregates:
    """The sum of evidence outside the window that holds most of it, and its ends for each box.

    The ends are the sums with all evidence inside the box at `least` and at `most`.
    """
    table = summed(evidence)
    total = table[..., -1, -1]
    area = boxes[:, 2] * boxes[:, 3]
    untouched = total[..., None] - box_sums(table, boxes)
    rest = total
    lower, upper = untouched + area * least, untouched + area * most
    for place in windows(evidence.shape[2:], window):
        inside = box_sums(table, place[None])
        both = intersections(boxes, place)
        # What the window takes away from the untouched cells, and from those of the box.
        outside = untouched - (inside - box_sums(table, both))
        kept = area - both[:, 2] * both[:, 3]
        rest = np.minimum(rest, total - inside[..., 0])
        lower = np.minimum(lower, outside + kept * least)
        upper = np.minimum(upper, outside + kept * most)
    return rest, lower, upper


def windows(grid: tuple[int, ...], size: tuple[int, int]) -> Boxes:
    """All boxes of this size on the grid."""
    tops, lefts = (np.arange(cells - side + 1) for cells, side in zip(grid, size, strict=True))
    corners = np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([corners, np.broadcast_to(size, corners.shape)], axis=1)


def intersections(boxes: Boxes, other: Int[np.ndarray, " 4"]) -> Boxes:
    """What each box has in common with another one; of height or width 0 if nothing."""
    start = np.maximum(boxes[:, :2], other[:2])
    stop = np.minimum(boxes[:, :2] + boxes[:, 2:], other[:2] + other[2:])
    return np.concatenate([start, (stop - start).clip(min=0)], axis=1)


def summed(votes: Votes) -> Table:
    """Sums over all cells above and to the left of each corner of the grid."""
    return np.pad(votes, ((0, 0), (0, 0), (1, 0), (1, 0))).cumsum(axis=2).cumsum(axis=3)


def box_sums(table: Table, boxes: Boxes) -> Sums:
    """Sums over the cells of each box, from `summed`."""
    top, left, height, width = boxes.T
    bottom, right = top + height, left + width
    return np.asarray(
        table[..., bottom, right]
        - table[..., top, right]
        - table[..., bottom, left]
        + table[..., top, left]
    )
