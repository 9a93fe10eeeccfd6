"""What is attacked: the classifier as it is, or defended; what it answers, and by which views.

A defended score of double masking, and of any defense that takes medians, extremes and clips of scores,
*is* the score of one of its views. So the view that decides a label is found by comparing, whatever the
defense; an adaptive attack follows the gradients of those views, and of random others, because as soon
as one view gives way another one decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.attack.goal import Goal
from patchdemux.bounds import ScoreBounds
from patchdemux.demux import PatchDemux
from patchdemux.engine import Engine
from patchdemux.margin import views_of
from patchdemux.runtimes.base import RuntimeClassifier

BATCH = 32
"""Views per call of an attack: always the same, so that the same seed gives the same patch."""

Scores = Float[np.ndarray, "image class"]


@dataclass(frozen=True, eq=False)
class Views:
    """Views whose gradients an attack follows.

    Attributes:
        hidden: masks.
        jobs: an image and the masks that hide a part of it.
        weights: how much each class counts in each view.
    """

    hidden: Bool[np.ndarray, "mask height width"]
    jobs: Int[np.ndarray, "job k"]
    weights: Float[np.ndarray, "job class"]


class Victim(ABC):
    """What is attacked. `demux` holds the model, the threat and the defense."""

    defended: bool

    def __init__(self, demux: PatchDemux) -> None:
        self.demux = demux
        given = demux.classifier
        # Other runtimes have no gradients; the very same weights in torch do.
        classifier = given.plain() if isinstance(given, RuntimeClassifier) else given
        fill = demux.engine.fill
        self.engine = Engine(classifier, fill=fill, batch_size=BATCH)

    @abstractmethod
    def scores(self, images: Tensor) -> Scores:
        """What it really answers."""

    @abstractmethod
    def clean_scores(self, images: Tensor, bounds: ScoreBounds | None) -> Scores:
        """What it answers to the clean images, from their bounds where these are known."""

    @abstractmethod
    def views(
        self, attacked: Tensor, places: Any, goal: Goal, step: int, random: np.random.Generator
    ) -> list[Views]:
        """The views to follow in this step."""

    def gradient(
        self, attacked: Tensor, places: Any, goal: Goal, step: int, random: np.random.Generator
    ) -> Tensor:
        """The slope of the goal's gain at every pixel of the attacked images."""
        total = attacked.new_zeros(attacked.shape)
        for views in self.views(attacked, places, goal, step, random):
            if not len(views.jobs):  # no label that matters is decided by a view
                continue
            own, weights = goal.of(views.jobs[:, 0]), views.weights

            def gain(
                scores: Tensor, jobs: slice, own: Goal = own, weights: Any = weights
            ) -> Tensor:
                some = own.of(np.arange(jobs.start, jobs.stop))
                return some.gain(scores) * scores.new_tensor(weights[jobs])

            total += self.engine.gradient(attacked, views.hidden, views.jobs, gain)
        return total


class Undefended(Victim):
    """The classifier as it is: one view, of the whole image."""

    defended = False

    def scores(self, images: Tensor) -> Scores:
        return self.demux.engine.scores(images)

    def clean_scores(self, images: Tensor, bounds: ScoreBounds | None) -> Scores:
        known = None if bounds is None else bounds.clean
        return self.scores(images) if known is None else known

    def views(
        self, attacked: Tensor, places: Any, goal: Goal, step: int, random: np.random.Generator
    ) -> list[Views]:
        hidden = np.zeros((1, *attacked.shape[-2:]), bool)
        jobs = np.stack([np.arange(len(attacked)), np.zeros(len(attacked), int)], axis=1)
        return [Views(hidden, jobs, goal.weights)]


class Defended(Victim):
    """The defended classifier.

    Args:
        demux: it.
        expectation: random views per image and step.
        refresh: after so many steps the views that decide are looked up anew; 0 for never.
    """

    defended = True

    def __init__(self, demux: PatchDemux, expectation: int, refresh: int) -> None:
        super().__init__(demux)
        self.expectation, self.refresh = expectation, refresh
        self._deciding: Deciding | None = None
        self._masks: tuple[np.ndarray, np.ndarray] | None = None
        self._open: tuple[bytes, list[np.ndarray]] = b"", []

    def scores(self, images: Tensor) -> Scores:
        return self.demux.bounds(images).defended

    def clean_scores(self, images: Tensor, bounds: ScoreBounds | None) -> Scores:
        return self.scores(images) if bounds is None else bounds.defended

    def views(
        self, attacked: Tensor, places: Any, goal: Goal, step: int, random: np.random.Generator
    ) -> list[Views]:
        if step == 0:
            self._deciding = None
        if self.refresh and step and step % self.refresh == 0:
            self._deciding = decided(self.demux, attacked)
        found = [self._random(attacked, places, goal, random)] if self.expectation else []
        if self._deciding is not None:
            found.append(self._deciding.views(goal))
        return found

    def _random(
        self, attacked: Tensor, places: Any, goal: Goal, random: np.random.Generator
    ) -> Views:
        """A few views of each image, drawn from all in which some of the patch can be seen."""
        if self._masks is None:
            self._masks = views_of(self.demux, attacked[:1])
        hidden, masks = self._masks
        key = np.asarray(places).tobytes()
        if self._open[0] != key:
            self._open = key, [visible(hidden, masks, place, self.demux) for place in places]
        chosen = [
            random.choice(own, min(self.expectation, len(own)), replace=False)
            for own in self._open[1]
        ]
        owners = np.repeat(np.arange(len(chosen)), [len(own) for own in chosen])
        jobs = np.concatenate([owners[:, None], masks[np.concatenate(chosen)]], axis=1)
        return Views(hidden, jobs, goal.weights[owners] / self.expectation)


@dataclass(frozen=True, eq=False)
class Deciding:
    """The view that decides each class of each image; -1 where the score is none of a view."""

    hidden: Bool[np.ndarray, "mask height width"]
    masks: Int[np.ndarray, "view k"]
    view: Int[np.ndarray, "image class"]

    def views(self, goal: Goal) -> Views:
        """Those of the labels that matter, each view once, with the classes that it decides."""
        weights = goal.weights
        images, classes = np.nonzero((weights > 0) & (self.view >= 0))
        pairs = np.stack([images, self.view[images, classes]], axis=1)
        unique, job = np.unique(pairs, axis=0, return_inverse=True)
        by_job = np.zeros((len(unique), weights.shape[1]))
        by_job[job.ravel(), classes] = weights[images, classes]
        jobs = np.concatenate([unique[:, :1], self.masks[unique[:, 1]]], axis=1)
        return Views(self.hidden, jobs, by_job)


def decided(demux: PatchDemux, images: Tensor) -> Deciding:
    """Run the defense, and find for every label the view whose score the defended score is."""
    fill = demux.engine.fill
    engine = Watching(demux.classifier, fill=fill, batch_size=BATCH)
    defended = demux.defense.bounds(engine, images, demux.threat).defended
    deciding = Deciding(
        np.zeros((1, *images.shape[-2:]), bool), np.zeros((0, 1), int), np.full(defended.shape, -1)
    )
    for hidden, masks, scores in engine.seen:
        equal = scores == defended[:, None]
        here = np.where(equal.any(axis=1), equal.argmax(axis=1) + len(deciding.masks), -1)
        deciding = Deciding(
            np.concatenate([deciding.hidden, hidden]),
            np.concatenate(widened(deciding.masks, masks + len(deciding.hidden))),
            np.where(deciding.view >= 0, deciding.view, here),
        )
    return deciding


class Watching(Engine):
    """Remembers all views that a defense asked for, and their scores."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def masked_scores(self, images: Tensor, hidden: np.ndarray, views: np.ndarray) -> np.ndarray:
        scores = super().masked_scores(images, hidden, views)
        self.seen.append((hidden, views, scores))
        return scores


def widened(*views: Int[np.ndarray, "_ _"]) -> list[np.ndarray]:
    """The same views with as many masks in each row; a mask that is named twice hides once."""
    most = max(own.shape[1] for own in views)
    return [np.pad(own, ((0, 0), (0, most - own.shape[1])), "edge") for own in views]


def visible(
    hidden: Bool[np.ndarray, "mask height width"],
    masks: Int[np.ndarray, "view k"],
    place: Any,
    demux: PatchDemux,
) -> Int[np.ndarray, " _"]:
    """The views in which some of the patch can be seen: only there it does anything."""
    (top, left), patch = place, demux.threat
    under = hidden[:, top : top + patch.height, left : left + patch.width]
    seen = ~np.any(under[masks], axis=1).all(axis=(1, 2))
    return np.flatnonzero(seen) if seen.any() else np.arange(len(masks))
