"""PyTorch itself: eager, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.engine import device_of
from patchdemux.runtimes.base import PRECISIONS, Precision, Runtime, Session


@dataclass(frozen=True)
class TorchSession:
    """Calls a function from images to logits, under autocast in half precision."""

    compute: Callable[[Tensor], Any]
    device: torch.device
    precision: Precision

    def __call__(self, images: Tensor) -> Tensor:
        images = images.to(self.device)
        if self.precision == "float32":
            logits: Tensor = self.compute(images)
            return logits
        with torch.autocast(self.device.type, getattr(torch, self.precision)):
            logits = self.compute(images)
        return logits.float()


class Eager(Runtime):
    """PyTorch as it is; the other precisions are autocast."""

    name = "torch"

    def precisions(self, device: torch.device) -> tuple[Precision, ...]:
        if device.type == "cuda":
            return PRECISIONS
        # oneDNN knows what the processor has; elsewhere half precision is only slower.
        onednn = torch.ops.mkldnn
        here = device.type == "cpu" and torch.backends.mkldnn.enabled
        half: list[Precision] = []
        if here and onednn._is_mkldnn_bf16_supported():
            half.append("bfloat16")
        if here and onednn._is_mkldnn_fp16_supported():
            half.append("float16")
        return ("float32", *half)

    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> Session:
        return TorchSession(classifier.compute, _device(classifier), precision)


class Compiled(Eager):
    """`torch.compile`: slow to begin, and again at the first change of the batch size."""

    name = "compile"

    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> Session:
        # All classifiers share the code of `compute`, but should not share its limit of recompiling.
        own = "isolate_recompiles"
        options: dict[str, Any] = {own: True} if own in signature(torch.compile).parameters else {}
        compiled = torch.compile(classifier.compute, **options)
        return TorchSession(compiled, _device(classifier), precision)


def _device(classifier: Classifier) -> torch.device:
    return device_of(classifier, torch.empty(0))
