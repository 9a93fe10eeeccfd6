"""Images with, label by label, the places from which a patch could do harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certified, predict, vulnerable
from patchdemux.inputs import logit
from patchdemux.masks import MaskSet
from patchdemux.report.heatmaps import as_data_uri, as_picture, danger_map, probability

MOST_FAKED = 6
"""Absent labels that are drawn per image; true labels are all drawn."""


@dataclass(frozen=True)
class LabelMap:
    """One label of one image: what it scores, and where a patch can turn it.

    `places` is the share of the patch's places in danger, or of the defense's regions where these
    are no boxes; then there is no `overlay`.
    """

    name: str
    true: bool
    predicted: bool
    certified: bool
    probability: float
    places: float
    overlay: str | None


@dataclass(frozen=True)
class GalleryImage:
    """One image with the labels worth a look; `more` absent labels that can be faked are not drawn."""

    name: str
    picture: str | None
    labels: Sequence[LabelMap]
    more: int = 0

    @property
    def safe(self) -> int:
        """True labels that no patch can hide."""
        return sum(label.true and label.certified for label in self.labels)

    @property
    def true(self) -> int:
        return sum(label.true for label in self.labels)


def gallery(
    images: Sequence[Tensor | None],
    names: Sequence[str],
    bounds: ScoreBounds,
    targets: Bool[np.ndarray, "image class"],
    class_names: Sequence[str],
    masks: MaskSet | None,
    threshold: float,
) -> list[GalleryImage]:
    """The images with, per label, where a patch could hide or fake it at a probability threshold.

    All true labels are shown, and the false ones that some patch can fake, most places first. An
    image that is None is not at hand.
    """
    at = logit(threshold)
    safe, labels = certified(bounds, targets, at), predict(bounds, at)
    wrong = vulnerable(bounds, targets, at)
    chances = probability(bounds.defended)
    shown = []
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        maps = []
        for c in np.flatnonzero(targets[i] | ~safe[i]).tolist():
            facts = (bool(targets[i, c]), bool(labels[i, c]), bool(safe[i, c]))
            overlay, places = None, float(wrong[i, :, c].mean())
            if masks is not None:
                drawn, places = danger_map(bounds, masks, i, c, bool(targets[i, c]), at)
                overlay = as_data_uri(drawn)
            maps.append(LabelMap(class_names[c], *facts, float(chances[i, c]), places, overlay))
        maps.sort(key=lambda m: (not m.true, -m.places))
        true = sum(m.true for m in maps)
        kept = maps[: true + MOST_FAKED]
        picture = None if image is None else as_picture(image)
        shown.append(GalleryImage(name, picture, kept, len(maps) - len(kept)))
    return shown


def pick(bounds: ScoreBounds, images: Sequence[int] | np.ndarray) -> ScoreBounds:
    """The bounds of some images, in this order."""
    chosen = np.asarray(images)
    clean = None if bounds.clean is None else bounds.clean[chosen]
    return ScoreBounds(clean, bounds.defended[chosen], bounds.lower[chosen], bounds.upper[chosen])
