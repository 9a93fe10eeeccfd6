"""Models by name, as the command line asks for them."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.threat import Size, as_size

FORMS = (
    '"digits" (the shipped network of the digit scenes), "timm:NAME" (any timm model), or '
    '"package.module:function" (your own function, called without arguments)'
)


def load_model(
    name: str,
    *,
    weights: Path | None = None,
    class_names: Sequence[str] | None = None,
    image_size: Size | None = None,
) -> Classifier:
    """A classifier by name.

    Args:
        name: "digits", "timm:NAME", or "package.module:function" for a function of yours that returns
            a `Classifier` or a torch module. Naming a function runs its code.
        weights: a state dict as safetensors, or as a PyTorch file, which is read with
            `weights_only=True` and so never runs code.
        class_names: one per class; a timm model is made with so many outputs.
        image_size: height and width; None: what the model asks for.
    """
    kind, _, rest = name.partition(":")
    if name == "digits":
        classifier = _digits()
    elif kind == "timm" and rest:
        classifier = _timm(rest, class_names)
    elif kind and rest:
        classifier = _function(kind, rest)
    else:
        raise ValueError(f"no model is called {name!r}; a model is {FORMS}")
    if weights is not None:
        load_weights(classifier.model, weights)
    if class_names is not None:
        classifier.class_names = tuple(class_names)
    if image_size is not None:
        classifier.image_size = as_size("image_size", image_size)
    return classifier


def load_weights(model: object, path: Path) -> None:
    """Load a state dict strictly; missing, unexpected and mis-shaped tensors are named."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"weights need a torch module, but the model is a {type(model).__name__}")
    state = read_state(path)
    own = model.state_dict()
    problems = [f"{key} is missing" for key in own if key not in state]
    problems += [f"{key} is unexpected" for key in state if key not in own]
    problems += [
        f"{key} has shape {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(f"{path} does not fit the model: {'; '.join(problems[:8])}{more}")
    model.load_state_dict(state)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file, without running any code that it may hold."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    for key in ("state_dict", "model"):
        state = state.get(key, state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict: a mapping from names to tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}


def _digits() -> Classifier:
    from patchdemux.data.digits import CLASS_NAMES, IMAGE_SIZE
    from patchdemux.models.digit_net import digit_net

    return Classifier(digit_net(), class_names=CLASS_NAMES, image_size=IMAGE_SIZE)


def _timm(name: str, class_names: Sequence[str] | None) -> Classifier:
    try:
        import timm
        from timm.data.config import resolve_model_data_config
    except ImportError as error:
        raise ImportError("timm models need timm: pip install 'patchdemux[models]'") from error
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"{name[:6]}*")[:6])
        raise ValueError(
            f"timm has no model {name!r}" + (f"; it has {close}, ..." if close else "")
        )
    outputs: dict[str, Any] = {} if class_names is None else {"num_classes": len(class_names)}
    model = timm.create_model(name, pretrained=False, **outputs)
    data: dict[str, Any] = resolve_model_data_config(model)
    return Classifier(model, image_size=data["input_size"][1:], mean=data["mean"], std=data["std"])


def _function(module: str, function: str) -> Classifier:
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find {module}:{function}: {error}") from error
    return Classifier.of(made)
