"""What runtimes share that run an exported model on the CPU."""

from __future__ import annotations

from torch import Tensor, nn

from patchdemux.classifier import Classifier


class Graph(nn.Module):
    """What is exported: from images in [0, 1] to logits, without checks."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier.compute(images)
        return logits


def graph_of(classifier: Classifier, runtime: str) -> Graph:
    """The classifier as it is exported, or an error if it cannot be."""
    if not isinstance(classifier.model, nn.Module):
        raise TypeError(
            f"{runtime} exports torch modules, but the model is a {type(classifier.model).__name__}"
        )
    return Graph(classifier).eval()
