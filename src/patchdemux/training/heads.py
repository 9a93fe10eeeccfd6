"""A new head for other classes: what is learned carries over, its last layer starts afresh."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from patchdemux.classifier import Classifier
from patchdemux.models.query2label import Query2Label
from patchdemux.runtimes.base import options_of


def with_classes(classifier: Classifier, class_names: Sequence[str]) -> Classifier:
    """The classifier with a fresh last layer that answers for these classes.

    Known are the models of timm (TResNet is one), Query2Label, and those of torchvision and others that
    end in a linear layer called `fc`, `classifier`, `head` or `heads`.
    """
    model = classifier.model
    if not isinstance(model, nn.Module):
        raise TypeError("only a torch module can be given a new head")
    if isinstance(model, Query2Label):
        model.reset_classes(len(class_names))
    elif callable(reset := getattr(model, "reset_classifier", None)):
        reset(len(class_names))
    else:
        _replace_last_linear(model, len(class_names))
    changed = Classifier(model, **{**options_of(classifier), "class_names": class_names})
    changed.channels_last = classifier.channels_last
    return changed


def _replace_last_linear(model: nn.Module, classes: int) -> None:
    """Exchange the linear layer that a model's answer comes from."""
    for name in ("fc", "classifier", "head", "heads"):
        found = getattr(model, name, None)
        owner, last = model, name
        while isinstance(found, nn.Sequential):
            owner, last = found, list(found._modules)[-1]
            found = found[-1]
        if isinstance(found, nn.Linear):
            setattr(owner, last, nn.Linear(found.in_features, classes, found.bias is not None))
            return
    raise ValueError(
        f"do not know which layer of {type(model).__name__} gives the classes: exchange it yourself, "
        f"and give the model with as many outputs as the data have classes"
    )
