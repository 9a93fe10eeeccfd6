"""A new head for other classes: what is learned carries over, its last layer starts afresh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from patchdemux.classifier import Classifier
from patchdemux.models.libraries import Logits
from patchdemux.models.query2label import Query2Label
from patchdemux.runtimes.base import options_of

HEADS = ("fc", "classifier", "head", "heads")
"""What libraries call the part that a model's answer comes from."""


def with_classes(classifier: Classifier, class_names: Sequence[str]) -> Classifier:
    """The classifier with a fresh last layer that answers for these classes; it is changed in place.

    Known are the models of timm (TResNet is one) and Query2Label, sequences, and those of torchvision,
    Hugging Face and others that end in a part called `fc`, `classifier`, `head` or `heads`.
    """
    model = classifier.model
    if not isinstance(model, nn.Module):
        raise TypeError("only a torch module can be given a new head")
    if isinstance(model, Query2Label):
        model.reset_classes(len(class_names))
    elif callable(reset := getattr(model, "reset_classifier", None)):
        reset(len(class_names))
    elif isinstance(model, Logits):
        _replace_last(model.model, len(class_names))
        config: Any = getattr(model.model, "config", None)
        if config is not None:
            config.id2label = dict(enumerate(class_names))
    else:
        _replace_last(model, len(class_names))
    changed = Classifier(model, **{**options_of(classifier), "class_names": class_names})
    changed.channels_last = classifier.channels_last
    return changed.to(next(model.parameters()).device)


def _replace_last(model: nn.Module, classes: int) -> None:
    """Exchange the linear layer, or convolution, that a model's answer comes from."""
    owner, name, found = model, "", model
    if not isinstance(model, nn.Sequential):
        name = next((name for name in HEADS if hasattr(model, name)), "")
        found = getattr(model, name, model)
    while isinstance(found, nn.Sequential):
        parts = found.named_children()
        learned = [place for place, part in parts if next(part.parameters(), None) is not None]
        if not learned:
            break
        owner, name = found, learned[-1]
        found = owner.get_submodule(name)
    if isinstance(found, nn.Linear):
        fresh: nn.Module = nn.Linear(found.in_features, classes, found.bias is not None)
    elif isinstance(found, nn.Conv2d) and found.kernel_size == (1, 1):
        fresh = nn.Conv2d(found.in_channels, classes, 1, bias=found.bias is not None)
    else:
        raise ValueError(
            f"do not know which layer of {type(model).__name__} gives the classes: exchange it "
            f"yourself, and give the model with as many outputs as the data have classes"
        )
    setattr(owner, name, fresh)
