"""What is guaranteed of every label of a photo whose true labels nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certified, predict, vulnerable
from patchdemux.masks import MaskSet
from patchdemux.report.heatmaps import danger_map, probability


@dataclass(frozen=True)
class Label:
    """What is guaranteed of one label of one photo.

    Attributes:
        index: its place among the classes.
        probability: its defended probability.
        certified: it stays predicted, or absent, wherever a patch is.
        at_least, at_most: its probability stays within these, whatever a patch shows.
        places: the share of a patch's places from which it may turn the label, or of the defense's
            regions where these are no boxes.
    """

    name: str
    index: int
    probability: float
    predicted: bool
    certified: bool
    at_least: float
    at_most: float
    places: float

    @property
    def verdict(self) -> str:
        """The guarantee in words."""
        if self.predicted:
            may = "certified: no patch can hide it", "a patch may hide it"
        else:
            may = "absent, certified: no patch can fake it", "absent, but a patch may fake it"
        return may[0] if self.certified else f"{may[1]}, from {self.places:.1%} of its places"


def labels_of(
    bounds: ScoreBounds, masks: MaskSet | None, image: int, names: Sequence[str], at: float
) -> list[Label]:
    """All labels of one photo, the likeliest first."""
    predicted = predict(bounds, at)
    safe = certified(bounds, predicted, at)[image]
    chances = probability(bounds.defended[image])
    wrong = vulnerable(bounds, predicted, at)[image]
    lowest = probability(bounds.lower[image].min(axis=0))
    highest = probability(bounds.upper[image].max(axis=0))
    labels = []
    for c, name in enumerate(names):
        there = bool(predicted[image, c])
        places = float(wrong[:, c].mean())
        if masks is not None and not safe[c]:
            places = danger_map(bounds, masks, image, c, there, at)[1]
        ends = float(lowest[c]), float(highest[c])
        labels.append(Label(name, c, float(chances[c]), there, bool(safe[c]), *ends, places))
    return sorted(labels, key=lambda label: -label.probability)


def worth_a_look(labels: Sequence[Label]) -> list[Label]:
    """Predicted labels, and then the absent ones that a patch may fake from most places."""
    fakeable = [label for label in labels if not label.predicted and not label.certified]
    fakeable.sort(key=lambda label: -label.places)
    return [label for label in labels if label.predicted] + fakeable


def overlay_of(
    bounds: ScoreBounds, masks: MaskSet | None, image: int, at: float, label: Label
) -> np.ndarray | None:
    """The places from which a patch may turn the label, to be drawn over the photo, if known."""
    if masks is None:
        return None
    return danger_map(bounds, masks, image, label.index, label.predicted, at)[0]
