"""Models by name, as the command line asks for them, and weights that never run code."""

from __future__ import annotations

import argparse
import importlib
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.threat import Size, as_size

PAPER = ("tresnet_l", "q2l-cvt")
"""The paper's models, which come from published checkpoints."""

FORMS = (
    '"coco" (the shipped classifier of photos), "digits" (the one of digit scenes), "timm:NAME", '
    '"torchvision:NAME", "hf:FOLDER" (a saved Hugging Face image classifier), "tresnet_l" or '
    '"q2l-cvt" (the paper\'s, with weights), a file (.onnx, .pt2, .pt of TorchScript, or a published '
    'checkpoint), or "package.module:function" (your own function, called without arguments)'
)

CHECKPOINTS = (".pth", ".pkl", ".ckpt", ".tar", ".safetensors", ".pt")
PROGRAMS = (".onnx", ".pt2")

WRAPPINGS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model")
"""Where checkpoints keep their tensors. The average over training comes first, as it is what their
authors measured."""

PREFIXES = ("module.", "_orig_mod.")
"""What training on several devices, averaging and compiling put before all names."""


def load_model(
    name: str | Path,
    *,
    weights: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    image_size: Size | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """A classifier by name, or from a file. Nothing is ever downloaded.

    Weights are read without running code. A program is another matter: naming a function runs it,
    and ONNX, `torch.export` and TorchScript files are programs; open those that you trust.

    Args:
        name: "coco", "digits", "timm:NAME", "torchvision:NAME", "hf:FOLDER", "tresnet_l",
            "q2l-cvt", "package.module:function" for a function of yours that returns a `Classifier`
            or a torch module; or a file: a published checkpoint of ASL, Query2Label or PatchDEMUX,
            ONNX (.onnx), `torch.export` (.pt2) or TorchScript (.pt).
        weights: a state dict as safetensors, or as a PyTorch file; of the last weights and their
            average over training (EMA) in one file, the average.
        class_names: one per class; a timm or torchvision model is made with so many outputs.
        image_size: height and width; None: what the model asks for.
        mean, std: normalisation per channel, in place of the model's own.
    """
    classifier = _made(str(name), weights, class_names, image_size)
    if class_names is not None:
        classifier.class_names = tuple(class_names)
    if image_size is not None:
        classifier.image_size = as_size("image_size", image_size)
    if mean is not None or std is not None:
        names, size = classifier.class_names, classifier.image_size
        return Classifier(
            classifier.model,
            class_names=names,
            image_size=size,
            mean=mean,
            std=std,
            visible_channel=classifier.visible_channel,
        )
    return classifier


def made_to_size(name: str) -> bool:
    """Whether a model is made with an output per class, and untrained without weights."""
    return name.startswith(("timm:", "torchvision:"))


def _made(
    name: str,
    weights: str | Path | None,
    class_names: Sequence[str] | None,
    image_size: Size | None,
) -> Classifier:
    """The classifier of this name, with its weights."""
    from patchdemux.models import checkpoints, coco, libraries

    kind, _, rest = name.partition(":")
    in_file = Path(name).suffix in (*CHECKPOINTS, *PROGRAMS)
    if name in PAPER:
        if weights is None:
            raise ValueError(f"{name} needs weights: a checkpoint of it, published or fine-tuned")
        return checkpoints.load_checkpoint(weights, name)
    if in_file or (kind == "hf" and rest):
        if weights is not None:
            raise ValueError(
                f"{name} brings its own weights, so {weights} cannot be loaded as well"
            )
        return _file(Path(name)) if in_file else libraries.from_hugging_face(rest)
    if name == "digits":
        classifier = _digits()
    elif name == "coco":
        classifier = coco.coco_classifier()
    elif kind == "timm" and rest:
        classifier = libraries.from_timm(rest, class_names=class_names, image_size=image_size)
    elif kind == "torchvision" and rest:
        classifier = libraries.from_torchvision(rest, class_names=class_names)
    elif kind and rest:
        classifier = _function(kind, rest)
    else:
        raise ValueError(f"no model is called {name!r}; a model is {FORMS}")
    if weights is not None:
        load_weights(classifier.model, weights)
    return classifier


def load_weights(model: object, path: str | Path) -> None:
    """Load a state dict strictly; missing, unexpected and mis-shaped tensors are named."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"weights need a torch module, but the model is a {type(model).__name__}")
    fit(model, read_state(path), str(path))


def fit(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a model strictly; missing, unexpected and mis-shaped ones are named.

    A model on the meta device takes the tensors as they are, without a copy.
    """
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
        raise ValueError(f"{source} does not fit the model: {'; '.join(problems[:8])}{more}")
    same_type = {key: tensor.to(own[key].dtype) for key, tensor in state.items()}
    model.load_state_dict(same_type, assign=any(tensor.is_meta for tensor in own.values()))


def shape_of(name: str, state: Mapping[str, Tensor], source: str, sides: int) -> tuple[int, ...]:
    """The shape of a tensor that tells a size of the model."""
    if name not in state:
        raise ValueError(f"{source} does not fit the model: {name} is missing")
    shape = tuple(state[name].shape)
    if len(shape) != sides:
        raise ValueError(f"{source} does not fit the model: {name} has shape {shape}")
    return shape


def layers(state: Mapping[str, Tensor], prefix: str) -> int:
    """How many numbered layers have names that begin so."""
    numbered = re.compile(re.escape(prefix) + r"\.(\d+)\.")
    return 1 + max((int(m[1]) for name in state if (m := numbered.match(name))), default=-1)


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weights file, without running any code that it may hold."""
    return state_of(read_file(path), path)


def read_file(path: str | Path) -> Any:
    """Everything that a weights file holds, without running any code that it may hold."""
    if Path(path).suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read as weights: {error}") from error
    try:
        with torch.serialization.safe_globals(_plain_values()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        lines = str(error).splitlines() or ["the file is empty"]
        reason = next((line for line in lines if "Unsupported" in line), lines[0])
        reason = reason.partition(" Please use ")[0].strip()  # never to allow what runs code
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error


def state_of(content: Any, path: str | Path) -> dict[str, Tensor]:
    """The state dict within what a file holds, under the names that its model gave."""
    while isinstance(content, Mapping):
        inner = [key for key in WRAPPINGS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = content[inner[0]]
    if isinstance(content, Mapping) and isinstance(content.get("n_averaged"), Tensor):
        content = {key: value for key, value in content.items() if key != "n_averaged"}
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(value, Tensor) for value in content.values())
    ):
        raise ValueError(f"{path} holds no state dict: a mapping from names to tensors")
    state = dict(content)
    while prefix := next((p for p in PREFIXES if all(key.startswith(p) for key in state)), None):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _plain_values() -> list[Any]:
    """What checkpoints hold beside tensors, and is safe: NumPy's numbers, and arguments."""
    scalar: Any = np.float64(0).__reduce__()[0]
    types = [type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?")]
    old_name = (scalar, "numpy.core.multiarray.scalar")
    return [scalar, old_name, np.dtype, *types, argparse.Namespace]


def _file(path: Path) -> Classifier:
    from patchdemux.models import checkpoints, programs

    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    if path.suffix == ".onnx":
        return programs.from_onnx(path)
    if path.suffix == ".pt2":
        return programs.from_exported(path)
    if programs.is_torchscript(path):
        return programs.from_torchscript(path)
    return checkpoints.load_checkpoint(path)


def _digits() -> Classifier:
    from patchdemux.data.digits import CLASS_NAMES, IMAGE_SIZE
    from patchdemux.models.digit_net import digit_net

    return Classifier(digit_net(), class_names=CLASS_NAMES, image_size=IMAGE_SIZE)


def _function(module: str, function: str) -> Classifier:
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find {module}:{function}: {error}") from error
    return Classifier.of(made)
