"""What a defense proves: a defended score per class, and an interval for it per patch region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from patchdemux.inputs import as_scores, blocks

Center = Literal["median", "undefended"]
Guard = Literal["both", "recall", "precision"]


@dataclass(frozen=True, eq=False)
class ScoreBounds:
    """Defended scores `g(x)` of some images, with what an attacker can make of them.

    For every region `r` and class `c`, and for every image `x'` that differs from `x` only by a
    patch inside `r`:  `lower[r, c] <= g(x')[c] <= upper[r, c]`.

    Attributes:
        clean: (image, class) scores of the undefended classifier, or None where they are not known.
        defended: (image, class) scores of the defended classifier.
        lower: (image, region, class), minus infinity where nothing is proved.
        upper: (image, region, class), plus infinity where nothing is proved.
    """

    clean: Float[np.ndarray, "image class"] | None
    defended: Float[np.ndarray, "image class"]
    lower: Float[np.ndarray, "image region class"]
    upper: Float[np.ndarray, "image region class"]

    def __post_init__(self) -> None:
        defended = as_scores("defended", self.defended, "image class")
        lower = as_scores("lower", self.lower, "image region class", infinite=-1)
        upper = as_scores("upper", self.upper, "image region class", infinite=+1)
        images, classes = defended.shape
        for name, array in (("lower", lower), ("upper", upper)):
            if array.shape != (images, lower.shape[1], classes):
                raise ValueError(
                    f"{name} has shape {array.shape}, but {images} images, {lower.shape[1]} "
                    f"regions and {classes} classes need {(images, lower.shape[1], classes)}"
                )
        # The image itself is one of the images x', so its own score lies in every interval.
        for block in blocks(images, lower[0].size):
            own = defended[block, None]
            outside = (lower[block] > own) | (upper[block] < own)
            if outside.any():
                image, region, label = (int(i) for i in np.argwhere(outside)[0])
                image += block.start
                raise ValueError(
                    f"the bounds contradict the defended score at image {image}, region {region}, "
                    f"class {label}: {defended[image, label]} is not within "
                    f"[{lower[image, region, label]}, {upper[image, region, label]}]"
                )
        if self.clean is not None:
            clean = as_scores("clean", self.clean, "image class")
            if clean.shape != (images, classes):
                raise ValueError(f"clean has shape {clean.shape}, but defended {defended.shape}")
            object.__setattr__(self, "clean", clean)
        object.__setattr__(self, "defended", defended)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    def __len__(self) -> int:
        return len(self.defended)

    def __getitem__(self, images: slice) -> ScoreBounds:
        """The bounds of some of the images."""
        clean = None if self.clean is None else self.clean[images]
        return ScoreBounds(clean, self.defended[images], self.lower[images], self.upper[images])

    def __repr__(self) -> str:
        images, regions, classes = self.lower.shape
        return f"ScoreBounds({images} images, {regions} regions, {classes} classes)"

    def widened(self, margin: float) -> ScoreBounds:
        """The same with every interval wider by a margin on both sides, rounded outward.

        So the bounds also hold for a classifier whose scores differ from the one that was run by up to
        the margin; `clean` and `defended` stay what they were.
        """
        margin = float(margin)
        if not 0 <= margin < np.inf:
            raise ValueError(f"margin must be a finite number, at least 0, but got {margin}")
        if margin == 0:
            return self
        dtype = self.lower.dtype.type
        step = dtype(margin)
        if step < margin:  # rounded down
            step = np.nextafter(step, dtype(np.inf))
        lower = np.nextafter(self.lower - step, dtype(-np.inf))
        upper = np.nextafter(self.upper + step, dtype(np.inf))
        return ScoreBounds(self.clean, self.defended, lower, upper)

    @classmethod
    def from_pairs(
        cls, scores: Any, clean: Any = None, *, center: Center = "median", guard: Guard = "both"
    ) -> ScoreBounds:
        """Double masking (PatchCleanser) at every threshold at once, from a table of scores.

        `scores[i, m, n, c]` is the score of image `i` with the pixels under masks `m` and `n` hidden
        (`m = n` is one mask alone). With `lower[m]` and `upper[m]` the extremes over the second mask,
        `floor = max_m lower[m]` and `ceiling = min_m upper[m]`, the defended score is

            clip(center, floor, ceiling)

        With the median center, `defended > t` is the answer of the two-round algorithm at every `t`.
        The certificate holds for any center: if the patch lies inside mask `m`, every view that
        includes `m` is the clean one, so `floor >= lower[m]`, `ceiling <= upper[m]`, and
        `floor <= ceiling` always.

        Args:
            scores: (image, mask, mask, class), symmetric in the two masks.
            clean: (image, class) scores without any mask.
            center: "median" of the single-mask scores (the paper), or the "undefended" score.
            guard: "both" clips on both sides. "recall" raises only, so that no label can be hidden,
                and proves no upper bound; "precision" lowers only, so that none can be invented.
        """
        scores = as_scores("scores", scores, "image mask mask class")
        masks = scores.shape[1]
        if clean is not None:
            clean = as_scores("clean", clean, "image class")
            if clean.shape != scores.shape[::3]:
                raise ValueError(f"clean has shape {clean.shape}, but defended {scores.shape[::3]}")
        if scores.shape[2] != masks:
            raise ValueError(
                f"scores must be (image, mask, mask, class) with as many first as second masks, "
                f"but got shape {scores.shape}"
            )
        asymmetric = scores != scores.swapaxes(1, 2)
        if asymmetric.any():
            image, first, second, label = (int(i) for i in np.argwhere(asymmetric)[0])
            raise ValueError(
                f"scores must be symmetric in the two masks, but image {image}, class {label} has "
                f"{scores[image, first, second, label]} under masks ({first}, {second}) and "
                f"{scores[image, second, first, label]} under ({second}, {first})"
            )
        singles = np.diagonal(scores, axis1=1, axis2=2).swapaxes(1, 2)
        return cls.from_rows(
            scores.min(axis=2), scores.max(axis=2), singles, clean, center=center, guard=guard
        )

    @classmethod
    def from_rows(
        cls,
        lower: Float[np.ndarray, "image mask class"],
        upper: Float[np.ndarray, "image mask class"],
        singles: Float[np.ndarray, "image mask class"],
        clean: Any = None,
        *,
        center: Center = "median",
        guard: Guard = "both",
    ) -> ScoreBounds:
        """The same from the extremes of every row of the table, and the scores under one mask."""
        check_options(center, guard)
        if center == "median":
            defended = median(singles)
        elif clean is None:
            raise ValueError('center="undefended" needs the clean scores')
        else:
            defended = as_scores("clean", clean, "image class").astype(lower.dtype)
        if guard != "precision":
            defended = np.maximum(defended, lower.max(axis=1))
        else:
            lower = np.full_like(lower, -np.inf)
        if guard != "recall":
            defended = np.minimum(defended, upper.min(axis=1))
        else:
            upper = np.full_like(upper, np.inf)
        return cls(clean, defended, lower, upper)


def check_options(center: str, guard: str) -> None:
    """The center and the guard are among those that exist."""
    for name, value, options in (("center", center, Center), ("guard", guard, Guard)):
        if value not in get_args(options):
            raise ValueError(f"{name} must be one of {get_args(options)}, but got {value!r}")


def median(singles: Float[np.ndarray, "image mask class"]) -> Float[np.ndarray, "image class"]:
    """The (M // 2 + 1)-th largest score: above t exactly when more than half of the scores are."""
    middle = (singles.shape[1] - 1) // 2
    return np.asarray(np.partition(singles, middle, axis=1)[:, middle])
