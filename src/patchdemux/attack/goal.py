"""What an attacker wants: which labels shall turn wrong, and how near a score is to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from patchdemux.certify import exceeds
from patchdemux.inputs import as_targets, logit

Objective = Literal["hide", "invent", "both", "errors"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
FAR = 0.1
"""What the labels that are far from the threshold count for, beside those that are near."""


@dataclass(frozen=True, eq=False)
class Goal:
    """The labels that an attacker wants wrong, image by image.

    "hide" wants true labels missed and "invent" false ones predicted. "both" wants both, and the
    two count the same, however few the true labels are; for "errors" each label counts the same.

    Attributes:
        objective: one of these.
        targets: the true labels.
        threshold: in the units of the scores; a label is predicted when its score is above it.
        labels: the labels that matter to the attacker; None for all that the objective names.
    """

    objective: Objective
    targets: Bool[np.ndarray, "image class"]
    threshold: float
    labels: Bool[np.ndarray, "image class"] | None = None

    @property
    def wanted(self) -> Bool[np.ndarray, "image class"]:
        """The labels that the attacker wants wrong."""
        kind = {"hide": self.targets, "invent": ~self.targets}
        wanted = kind.get(self.objective, np.ones_like(self.targets))
        return wanted if self.labels is None else wanted & self.labels

    @property
    def weights(self) -> Float[np.ndarray, "image class"]:
        """How much each label counts; they sum to 1, or to 0 for an image without wanted labels."""
        wanted = self.wanted
        kinds = [wanted]
        if self.objective == "both":
            kinds = [wanted & self.targets, wanted & ~self.targets]
        shares = [kind / np.maximum(kind.sum(axis=1, keepdims=True), 1) for kind in kinds]
        total = np.sum(shares, axis=0)
        return np.asarray(total / np.maximum(total.sum(axis=1, keepdims=True), 1))

    def of(self, images: Int[np.ndarray, " some"]) -> Goal:
        """The goal for some of the images, also several times the same."""
        labels = None if self.labels is None else self.labels[images]
        return Goal(self.objective, self.targets[images], self.threshold, labels)

    def gain(self, scores: Tensor) -> Tensor:
        """How far the attacker is, per image and class and without weights: 0 is perfect, below not.

        The probability of the wrong answer, a smooth count of errors, pulls at the labels that are
        near the threshold. A little of its logarithm is added, which pulls at all others too. The
        logarithm alone would spread the patch thin over labels that it never reaches.
        """
        sign = torch.from_numpy(np.where(self.targets, -1.0, 1.0)).to(scores)
        wrong = sign * (scores - self.threshold)
        return torch.sigmoid(wrong) - 1 + FAR * functional.logsigmoid(wrong)

    def errors(self, scores: Float[np.ndarray, "image class"]) -> Int[np.ndarray, " image"]:
        """The wanted labels that are wrong."""
        wrong = exceeds(scores, self.threshold) != self.targets
        return np.asarray((wrong & self.wanted).sum(axis=1))

    def merit(self, scores: Float[np.ndarray, "image class"]) -> Float[np.ndarray, " image"]:
        """What is best for the attacker is highest: errors first, and the weighted gain among equals.

        The gain makes less than one error, and strictly more of it is strictly better.
        """
        gain = self.gain(torch.from_numpy(np.ascontiguousarray(scores)).double()).numpy()
        total = np.where(self.weights > 0, self.weights * gain, 0).sum(axis=1)
        return np.asarray(self.errors(scores) + 1 / (2 - total))


def goal_of(
    objective: Objective, targets: Any, images: int, threshold: float, labels: Any = None
) -> Goal:
    """A goal from what a person gave: 0/1 targets, a probability, and the labels that matter."""
    truth = as_targets(targets, (images, np.shape(targets)[-1]))
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != truth.shape or labels.dtype != bool:
            raise ValueError(
                f"labels must have one boolean per image and class, shape {truth.shape}, "
                f"but got {labels.dtype} of shape {labels.shape}"
            )
    return Goal(objective, truth, logit(threshold), labels)
