"""Patch attacks on multi-label classifiers, undefended and defended, on many images at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.attack.check import Violation, violations
from patchdemux.attack.goal import OBJECTIVES, Goal, Objective, goal_of
from patchdemux.attack.gradient import Ascent, Scene, ascend
from patchdemux.attack.places import NAMED_PLACES, Place, choose_places, crop, paste
from patchdemux.attack.search import search
from patchdemux.attack.victims import Defended, Undefended, Victim
from patchdemux.bounds import ScoreBounds
from patchdemux.demux import PatchDemux
from patchdemux.engine import check_images
from patchdemux.inputs import as_targets
from patchdemux.margin import measure_margin

Method = Literal["gradient", "square", "random"]
CHUNK = 64  # tries at a time


@dataclass(frozen=True)
class Attack:
    """How to attack.

    Attributes:
        objective: "hide" true labels, "invent" false ones, "both", or the most "errors" of any kind.
        method: "gradient"; or "square" or "random", which need scores only.
        place: "weakest" (the regions where the bounds allow the most), "every" region, "random"
            places, or (row, column) of the patch's top left corner.
        places: how many of the weakest regions, or random places, are tried on each image.
        restarts: random contents to begin with, at each place.
        steps: of the gradient or the search, for each try.
        step_size: of the first step of the gradient; later ones are smaller.
        momentum: share of the earlier steps that each step keeps.
        expectation: against the defense, random masked views per image and step.
        refresh: after so many steps the views that decide the defended scores are looked up, which
            takes all views of the defense; from then on their gradients are followed too. 0: never.
        seed: the same seed gives the same patches, on the same machine.
    """

    objective: Objective = "both"
    method: Method = "gradient"
    place: Place = "weakest"
    places: int = 1
    restarts: int = 1
    steps: int = 40
    step_size: float = 0.1
    momentum: float = 0.9
    expectation: int = 4
    refresh: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, among in (("objective", OBJECTIVES), ("method", get_args(Method))):
            if getattr(self, name) not in among:
                raise ValueError(f"{name} must be one of {among}, but got {getattr(self, name)!r}")
        if isinstance(self.place, str) and self.place not in NAMED_PLACES:
            raise ValueError(
                f"place must be one of {NAMED_PLACES} or a tuple, but got {self.place!r}"
            )
        for name, least in (("places", 1), ("restarts", 1), ("steps", 0), ("refresh", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, but got {getattr(self, name)}")
        if self.expectation < 1:
            raise ValueError(f"expectation must be at least 1, but got {self.expectation}")
        if not 0 < self.step_size <= 1:
            raise ValueError(f"step_size must be above 0 and at most 1, but got {self.step_size}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, but got {self.momentum}")

    @property
    def ascent(self) -> Ascent:
        """The steps of the gradient."""
        return Ascent(self.steps, self.step_size, self.momentum)


@dataclass(frozen=True, eq=False)
class Attacked:
    """What an attack came to, image by image, as the victim itself answered.

    Attributes:
        images: the attacked images.
        patches: the content of the patch, and
        places: row and column of its top left corner.
        scores: the victim's answer to the attacked images.
        errors: the labels among those that the attacker wanted wrong that are.
        tried: patches per image of which the best is here; where all were worse than none, the patch
            shows what was there before.
        violations: what broke the certificate, in any try; nothing, if it is true.
        broken: the patch of every violation.
    """

    images: Tensor
    patches: Tensor
    places: Int[np.ndarray, "image 2"]
    scores: Float[np.ndarray, "image class"]
    errors: Int[np.ndarray, " image"]
    tried: int
    violations: tuple[Violation, ...] = ()
    broken: tuple[Tensor, ...] = ()


def attack(
    demux: PatchDemux,
    images: Tensor,
    targets: Any,
    how: Attack | None = None,
    *,
    defended: bool = True,
    threshold: float = 0.5,
    bounds: ScoreBounds | None = None,
    labels: Bool[np.ndarray, "image class"] | None = None,
    start: Attacked | None = None,
) -> Attacked:
    """Look for the patch of the threat on each image that does the most harm.

    Every patch that is tried is judged by what the victim really answers, so the result is an upper
    bound on how robust it is. The bounds are checked against every answer of the defended classifier.

    Args:
        demux: the model, the threat and the defense.
        images: (image, channel, height, width) in [0, 1].
        targets: (image, class) 0/1 labels.
        how: the attack; None for the usual one.
        defended: attack the defended classifier, or else the model alone.
        threshold: the probability above which a label is predicted.
        bounds: of the clean images, widened by the numerical margin; None: where they are needed
            they are computed, and the margin is measured.
        labels: (image, class), the labels that matter to the attacker; None for all.
        start: an earlier attack; the first try begins with its patches, where they were.
    """
    how = how or Attack()
    images = check_images(images)
    if bounds is None and (defended or how.place == "weakest"):
        bounds = demux.bounds(images).widened(measure_margin(demux, images).value)
    victim = victim_of(demux, how, defended)
    clean = victim.clean_scores(images, bounds)
    as_targets(targets, clean.shape)  # as many classes as the model has
    goal = goal_of(how.objective, targets, len(images), threshold, labels)
    random = np.random.default_rng(how.seed)
    tries = places_of(demux, images, how, goal, bounds, random)
    tries = np.repeat(tries, how.restarts, axis=1)
    shape = (*tries.shape[:2], *patch_shape(demux, images))
    patches = torch.from_numpy(random.random(shape, dtype=np.float32)).to(images.device)
    if start is not None:
        tries[:, 0], patches[:, 0] = start.places, start.patches
    count = tries.shape[1]
    step = max(1, CHUNK // count)
    for first in range(0, len(images), step):
        owners = np.arange(first, min(first + step, len(images))).repeat(count)
        some = slice(first, first + step)
        at, begin = tries[some].reshape(-1, 2), patches[some].flatten(0, 1)
        better = improved(victim, images[owners], goal.of(owners), at, begin, how, random)
        patches[some] = better.reshape(-1, *shape[1:])
    before = Attacked(
        images, crop(images, tries[:, 0], demux.threat), tries[:, 0], clean, goal.errors(clean), 0
    )
    return judged(victim, images, goal, tries, patches, bounds, before)


def improved(
    victim: Victim,
    images: Tensor,
    goal: Goal,
    places: Int[np.ndarray, "image 2"],
    patches: Tensor,
    how: Attack,
    random: np.random.Generator,
) -> Tensor:
    """The patches after the attack's steps, one on each image."""
    if how.method != "gradient":
        return search(how.method, victim, images, goal, places, patches, random, steps=how.steps)
    scene = Scene(images, goal, places, np.arange(len(images)))
    return ascend(victim, lambda: scene, patches, random, how.ascent)


def judged(
    victim: Victim,
    images: Tensor,
    goal: Goal,
    tries: Int[np.ndarray, "image try 2"],
    patches: Tensor,
    bounds: ScoreBounds | None,
    best: Attacked | None,
) -> Attacked:
    """Put every patch on its image, ask the victim, keep the most harmful, and check the bounds.

    Args:
        victim: what answers.
        images, goal, tries, patches: the clean images, what is wanted, and what is tried.
        bounds: what the answers are checked against, if the victim is defended.
        best: what a try has to surpass; None for the first try.
    """
    demux = victim.demux
    boxes = demux.defense.region_boxes(size_of(images), demux.threat)
    broken: list[tuple[Violation, Tensor]] = []
    for k in range(tries.shape[1]):
        places, own = tries[:, k], patches[:, k]
        attacked = paste(images, places, own)
        scores = victim.scores(attacked)
        if bounds is not None and victim.defended:
            wrong = violations(bounds, scores, places, boxes, demux.threat)
            broken += [(violation, own[violation.image]) for violation in wrong]
        errors = goal.errors(scores)
        if best is None:
            best = Attacked(attacked, own, places, scores, errors, 0)
            continue
        better = goal.merit(scores) > goal.merit(best.scores)
        pixels = torch.from_numpy(better).to(images.device)[:, None, None, None]
        best = Attacked(
            torch.where(pixels, attacked, best.images),
            torch.where(pixels, own, best.patches),
            np.where(better[:, None], places, best.places),
            np.where(better[:, None], scores, best.scores),
            np.where(better, errors, best.errors),
            0,
        )
    assert best is not None
    return replace(
        best,
        tried=tries.shape[1],
        violations=tuple(violation for violation, _ in broken),
        broken=tuple(patch for _, patch in broken),
    )


def victim_of(demux: PatchDemux, how: Attack, defended: bool) -> Victim:
    """The model alone, or defended."""
    return Defended(demux, how.expectation, how.refresh) if defended else Undefended(demux)


def places_of(
    demux: PatchDemux,
    images: Tensor,
    how: Attack,
    goal: Goal,
    bounds: ScoreBounds | None,
    random: np.random.Generator,
) -> Int[np.ndarray, "image try 2"]:
    """The places that the attack tries on each image."""
    size = size_of(images)
    boxes = demux.defense.region_boxes(size, demux.threat)
    count = len(images)
    return choose_places(
        how.place, how.places, count, size, demux.threat, goal, boxes, bounds, random
    )


def patch_shape(demux: PatchDemux, images: Tensor) -> tuple[int, int, int]:
    """Channels, height and width of the patch."""
    return images.shape[1], demux.threat.height, demux.threat.width


def size_of(images: Tensor) -> tuple[int, int]:
    return int(images.shape[2]), int(images.shape[3])
