"""Which pairs of masks to run, so that double masking is decided at one threshold with few of them.

Pure logic on arrays: no model is called here. A class is decided as soon as the interval in which its
defended score must lie, whatever the pairs not run would show, leaves the threshold outside. That is
the two-round algorithm of PatchCleanser: where the center is above the threshold, the label is 0
exactly when all scores of some row (one mask with every other) are at or below it, and the other way
round. A row in which every score so far disagrees with the center is a *candidate*; one contrary score
ends it, and every score belongs to two rows.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from jaxtyping import Bool, Float, Int

from patchdemux.bounds import Guard
from patchdemux.certify import representable

SPREAD = 0.25
"""Uncertainty of the predicted score of a pair, in root mean square effects of a single mask."""

SUREST = 9.2
"""Log-odds beyond which no prediction goes: 1 in 10,000."""

ROW = 8.0
"""What finishing a row that decides a class is worth, in classes of which all candidates are ended."""

MOST = 8
"""Views of an image per round: more would often be run for a row that has ended in the same round."""

WORTH = 0.8
"""A view joins a round if it is worth this share of the round's first one, as far as is known."""


class ImageSearch:
    """Double masking's labels of one image, from as few pairs of masks as they need.

    Args:
        singles: scores under one mask.
        center: what is clipped: the median of `singles`, or the undefended score.
        at: a label is 1 when its score is greater than this number.
        guard: the sides that are clipped, as in `ScoreBounds.from_pairs`.

    Attributes:
        low, high: least and greatest score of each row so far.
        known: pairs of masks that were run.
        views: their number, single masks left out.
        undecided: the classes that are.
    """

    def __init__(
        self,
        singles: Float[np.ndarray, "mask class"],
        center: Float[np.ndarray, " class"],
        at: float,
        guard: Guard = "both",
    ) -> None:
        self.low, self.high = singles.copy(), singles.copy()
        self.center, self.at, self.guard = center, at, guard
        self.known = np.eye(len(singles), dtype=bool)
        self.views = 0
        self.undecided = np.arange(len(center))
        # For every undecided class, once they are needed: the chance that a pair's score agrees with
        # the center, which ends both of its rows; the logarithm of the chance that it does not, and
        # the sum of those over the pairs of a row that were not run.
        self._contrary: Float[np.ndarray, "open mask mask"] | None = None
        self._log_disagrees = self._log_unanimous = np.empty(0)
        self._settle()

    def interval(
        self, classes: Int[np.ndarray, " some"]
    ) -> tuple[Float[np.ndarray, " some"], Float[np.ndarray, " some"]]:
        """Where the defended score lies, whatever the pairs not yet run would show."""
        low, high, center = self.low[:, classes], self.high[:, classes], self.center[classes]
        # A finished row proves; any other only limits what it may still prove.
        finished = self.known.all(axis=1)
        lower = upper = center
        if self.guard != "precision":
            lower = np.maximum(center, low[finished].max(axis=0, initial=-np.inf))
            upper = np.maximum(center, low.max(axis=0))
        if self.guard != "recall":
            lower = np.minimum(lower, high.min(axis=0))
            upper = np.minimum(upper, high[finished].min(axis=0, initial=np.inf))
        return lower, upper

    def learn(
        self, pairs: Int[np.ndarray, "view 2"], scores: Float[np.ndarray, "view class"]
    ) -> None:
        """Take note of the scores of pairs that were run."""
        for (first, second), score in zip(pairs.tolist(), scores, strict=True):
            self.known[first, second] = self.known[second, first] = True
            for row in (first, second):
                np.minimum(self.low[row], score, out=self.low[row])
                np.maximum(self.high[row], score, out=self.high[row])
            if self._contrary is not None:
                for row in (first, second):
                    self._log_unanimous[:, row] -= self._log_disagrees[:, first, second]
        self.views += len(pairs)
        self._settle()

    def next_pairs(self, most: int) -> Int[np.ndarray, "view 2"]:
        """The pairs, up to `most` and not yet run, that promise to decide the most.

        The worth of a pair is the share of each undecided class's candidate rows that it is expected
        to end, and, for both of its rows, the chance that the row turns out unanimous, which decides
        the class, over the square root of the views which that still takes. Every further pair is
        chosen as if the ones before had turned out as expected.
        """
        if not len(self.undecided):
            return np.empty((0, 2), int)
        contrary = self._predicted()
        candidates = self._candidates()
        share = (candidates / candidates.sum(axis=1, keepdims=True)).astype(np.float32)
        finish = ROW * np.exp(self._log_unanimous) * candidates
        left = (~self.known).sum(axis=1)
        by_row = np.einsum("cm,cmn->mn", share, contrary)
        by_row += (finish.sum(axis=0) / np.sqrt(np.maximum(left, 1)))[:, None]
        worth = np.where(self.known, -np.inf, by_row + by_row.T)
        pairs: list[tuple[int, int]] = []
        least = 0.0
        while len(pairs) < most:
            first, second = divmod(int(worth.argmax()), len(worth))
            if worth[first, second] < least:
                break
            pairs.append((first, second))
            least = least or WORTH * float(worth[first, second])
            survives = 1 - contrary[:, first, second]
            worth[first, second] = worth[second, first] = -np.inf
            for row in (first, second):
                share[:, row] *= survives
                # Squared: a row that has ended makes this view useless, and another one better.
                finish[:, row] *= survives**2
                left[row] -= 1
                by_row[row] = share[:, row] @ contrary[:, row]
                by_row[row] += finish[:, row].sum() / sqrt(max(left[row], 1))
            for row in (first, second):
                open_pairs = worth[row] > -np.inf
                worth[row, open_pairs] = (by_row[row] + by_row[:, row])[open_pairs]
                worth[open_pairs, row] = worth[row, open_pairs]
        return np.array(pairs)

    def _settle(self) -> None:
        """Drop the classes whose interval leaves the threshold outside."""
        lower, upper = self.interval(self.undecided)
        still = (lower <= self.at) & (upper > self.at)
        if still.all():
            return
        self.undecided = self.undecided[still]
        if self._contrary is not None:
            self._contrary = self._contrary[still]
            self._log_disagrees = self._log_disagrees[still]
            self._log_unanimous = self._log_unanimous[still]

    def _candidates(self) -> Bool[np.ndarray, "open mask"]:
        """Rows in which every score so far disagrees with the center."""
        low, high = self.low[:, self.undecided], self.high[:, self.undecided]
        return np.where(self.center[self.undecided] > self.at, high <= self.at, low > self.at).T

    def _predicted(self) -> Float[np.ndarray, "open mask mask"]:
        """How pairs will turn out, if the effects of two masks add up, give or take `SPREAD`."""
        if self._contrary is not None:
            return self._contrary
        single = self.low[:, self.undecided].T.astype(np.float64)
        center = self.center[self.undecided, None].astype(np.float64)
        effect = single - center
        spread = SPREAD * np.sqrt((effect**2).mean(axis=1, keepdims=True))
        sign = np.where(center > self.at, -1, 1) / np.maximum(spread, np.finfo(float).tiny)
        # Positive: on the side of the threshold where the center is not.
        reach = (sign * effect).clip(-1e6, 1e6).astype(np.float32)
        start = (sign * (center - self.at)).clip(-1e6, 1e6).astype(np.float32)
        odds = reach[:, :, None] + reach[:, None] + start[:, None]
        odds = np.exp(odds.clip(-SUREST, SUREST))
        self._contrary = 1 / (1 + odds)
        self._log_disagrees = np.log1p(-self._contrary)
        self._log_unanimous = (self._log_disagrees * ~self.known).sum(axis=2)
        return self._contrary


class Schedule:
    """The searches of a batch of images, in rounds that make wide batches.

    Args:
        singles: scores under one mask.
        center: what is clipped.
        threshold: in the units of the scores.
        guard: the sides that are clipped.
        max_pairs: pairs of masks per image after which the search stops; None for no limit.
    """

    def __init__(
        self,
        singles: Float[np.ndarray, "image mask class"],
        center: Float[np.ndarray, "image class"],
        threshold: float,
        guard: Guard = "both",
        max_pairs: int | None = None,
    ) -> None:
        at = float(representable(np.array(threshold, np.float64), singles.dtype))
        self.searches = [
            ImageSearch(*image, at, guard) for image in zip(singles, center, strict=True)
        ]
        self.max_pairs = singles.shape[1] ** 2 if max_pairs is None else max_pairs

    def next_views(self, budget: int) -> Int[np.ndarray, "job 3"]:
        """The next round: image and pair of masks of every view, some for every undecided image.

        About `budget` views in all, but at least one and at most `MOST` for each image. None when all
        images are decided or at their limit.
        """
        waiting = [
            image
            for image, search in enumerate(self.searches)
            if len(search.undecided) and search.views < self.max_pairs
        ]
        most = min(max(budget // max(len(waiting), 1), 1), MOST)
        jobs = [np.empty((0, 3), int)]
        for image in waiting:
            pairs = self.searches[image].next_pairs(
                min(most, self.max_pairs - self.searches[image].views)
            )
            jobs.append(np.insert(pairs, 0, image, axis=1))
        return np.concatenate(jobs)

    def learn(self, jobs: Int[np.ndarray, "job 3"], scores: Float[np.ndarray, "job class"]) -> None:
        """Take note of the scores of a round."""
        images, starts = np.unique(jobs[:, 0], return_index=True)
        for image, start, stop in zip(
            images.tolist(), starts, [*starts[1:], len(jobs)], strict=True
        ):
            self.searches[image].learn(jobs[start:stop, 1:], scores[start:stop])

    def intervals(
        self,
    ) -> tuple[Float[np.ndarray, "image class"], Float[np.ndarray, "image class"]]:
        """The interval of every image's and class's defended score, from what was run so far."""
        ends = [search.interval(np.arange(len(search.center))) for search in self.searches]
        return np.stack([lower for lower, _ in ends]), np.stack([upper for _, upper in ends])

    def views(self) -> Int[np.ndarray, " image"]:
        """The pairs that were run, per image."""
        return np.array([search.views for search in self.searches])
