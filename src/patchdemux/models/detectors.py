"""Object detectors as multi-label classifiers: the score of a class is its highest of any box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier

BoxScores = Callable[[Any], Tensor]
"""From what a detector answers to a logit per box or anchor and class: (image, box, class)."""


def from_detector(
    model: Callable[[Tensor], Any],
    scores: BoxScores,
    *,
    classes: Sequence[int] | None = None,
    **options: Any,
) -> Classifier:
    """A detector as a classifier.

    Args:
        model: from normalised images to whatever the detector answers.
        scores: what reads a logit per box and class off that: `listed_boxes(...)` for torchvision,
            `softmax_boxes` or `sigmoid_boxes` for Hugging Face, or a function of your own.
        classes: the detector's classes to keep, in this order, such as all but the background.
        options: of `Classifier`: `class_names` of the classes kept, `image_size`, `mean`, `std`.
    """
    return Classifier(Detector(model, scores, classes), **options)


class Detector(nn.Module):
    """From images to one logit per class: the maximum over all boxes."""

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        scores: BoxScores,
        classes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.scores = scores
        self.classes = None if classes is None else list(classes)

    def forward(self, images: Tensor) -> Tensor:
        boxes = self.scores(self.model(images))
        if not isinstance(boxes, Tensor) or boxes.ndim != 3 or 0 in boxes.shape:
            got = tuple(boxes.shape) if isinstance(boxes, Tensor) else type(boxes).__name__
            raise ValueError(f"the scores of a detector must be (image, box, class), but got {got}")
        best = boxes.amax(dim=1)
        return best if self.classes is None else best[:, self.classes]


def sigmoid_boxes(answer: Any) -> Tensor:
    """The `logits` of a Hugging Face detector whose classes are independent, as in Deformable DETR."""
    logits: Tensor = answer.logits
    return logits


def softmax_boxes(answer: Any) -> Tensor:
    """The `logits` of a Hugging Face detector whose last class means "no object", as in DETR."""
    return log_odds(answer.logits)[..., :-1]


def log_odds(logits: Tensor) -> Tensor:
    """The logit of every softmax probability: the score minus the log of the sum over the others.

    >>> log_odds(torch.tensor([[100.0, 0.0, 0.0]])).round().tolist()
    [[99.0, -100.0, -100.0]]
    """
    top = logits == logits.amax(dim=-1, keepdim=True)
    top &= top.cumsum(dim=-1) == 1  # the first of equals
    total = logits.logsumexp(dim=-1, keepdim=True)
    # The total less the class itself; for the largest class that would lose all digits.
    share = (logits - total).masked_fill(top, -1.0)
    others = total + torch.log1p(-share.exp())
    beside_top = logits.masked_fill(top, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return logits - torch.where(top, beside_top, others)


def listed_boxes(classes: int, floor: float = 1e-4) -> BoxScores:
    """Reads torchvision's detectors, which list the boxes of each image with `labels` and `scores`.

    A detector does not list boxes below its `score_thresh` (0.05 if it was not told otherwise), so
    the class of none gets the floor. Make it with a low `score_thresh` for scores that are exact.

    Args:
        classes: their number, the background included.
        floor: the lowest probability of any class.
    """

    def scores(answer: Any) -> Tensor:
        most = max(len(image["labels"]) for image in answer)
        device = answer[0]["scores"].device
        probabilities = torch.full((len(answer), most + 1, classes), floor, device=device)
        for row, image in zip(probabilities, answer, strict=True):
            listed = torch.arange(len(image["labels"]), device=device)
            row[listed, image["labels"]] = image["scores"].float().clamp(min=floor)
        return torch.logit(probabilities, eps=1e-7)

    return scores
