"""Which model it is: its name, and sums over its architecture and weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier


def model_fields(classifier: Classifier) -> dict[str, str | None]:
    """What the model is, whatever runs it.

    Where there are no weights to see, a model may bring a `digest`; without one they are None.
    """
    weights = dict(classifier.named_buffers()) | classifier.state_dict()
    for own_field in ("mean", "std"):
        weights.pop(own_field)
    model = classifier.model
    layers = repr(model) if isinstance(model, nn.Module) else ""
    return {
        "model": qualified_name(model),
        "architecture": sha256([re.sub(r" at 0x[0-9a-fA-F]+", "", layers).encode()]),
        "weights": sha256(bytes_of(weights)) if weights else getattr(model, "digest", None),
    }


def qualified_name(model: Callable[..., Any]) -> str:
    """Where a function or a module's class is defined."""
    named = model if hasattr(model, "__qualname__") else type(model)
    return f"{named.__module__}.{named.__qualname__}"


def bytes_of(value: Any) -> Iterable[bytes]:
    """Everything that a state holds, with names, types and shapes."""
    if isinstance(value, Tensor):
        tensor = value.detach().dequantize() if value.is_quantized else value.detach()
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield str(name).encode()
            yield from bytes_of(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from bytes_of(entry)
    else:
        yield repr(value).encode()


def sha256(parts: Iterable[bytes]) -> str:
    """One sum over all parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts read the same
        total.update(part)
    return "sha256:" + total.hexdigest()
