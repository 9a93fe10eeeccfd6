"""Runtimes by name."""

from __future__ import annotations

import torch
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.engine import check_images, device_of
from patchdemux.runtimes.base import PRECISIONS, Precision, Runtime, RuntimeClassifier
from patchdemux.runtimes.onnx import OnnxRuntime
from patchdemux.runtimes.openvino import OpenVINO
from patchdemux.runtimes.pytorch import Compiled, Eager
from patchdemux.runtimes.shared import NAME, SharedPrefix

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime for runtime in (Eager(), Compiled(), OnnxRuntime(), OpenVINO())
}


def make_runtime(
    classifier: Classifier,
    name: str = "torch",
    precision: str = "float32",
    *,
    views: Tensor | None = None,
) -> Classifier:
    """The same classifier, run by another runtime or in another precision.

    Before it is trusted, it is compared with torch in float32: on the views if they are given, else
    on the first views it is shown. `torch` in `float32` is the classifier itself.

    Args:
        classifier: what to run; its weights are taken as they are when it is first called.
        name: "torch", "compile" (`torch.compile`), "onnx" (ONNX Runtime) or "openvino"; or "shared:"
            and a layer, up to which PyTorch computes most features of views once (`SharedPrefix`).
        precision: "float32", or "bfloat16" or "float16" where the machine and the runtime have it.
        views: masked images in [0, 1].
    """
    runtime = runtime_named(name)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, but got {precision!r}")
    if isinstance(classifier, RuntimeClassifier):
        if (classifier.runtime, classifier.precision) == (name, precision):
            return classifier
        classifier = classifier.plain()
    if (name, precision) == ("torch", "float32"):
        return classifier
    if type(classifier) is not Classifier:  # then its own `forward` is what counts
        classifier = Classifier(
            classifier,
            class_names=classifier.class_names,
            image_size=classifier.image_size,
            visible_channel=classifier.visible_channel,
        )
    runtime.accept(classifier)
    device = device_of(classifier, torch.empty(0))
    offered = runtime.precisions(device)
    if not offered:
        raise ValueError(f"the runtime {name} runs on the CPU, but the model is on {device}")
    if precision not in offered:
        raise ValueError(
            f"the runtime {name} has no {precision} on this machine ({device.type}), only "
            f"{', '.join(offered)}"
        )
    made = RuntimeClassifier(classifier, runtime, precision)
    if views is not None:
        made.check(check_images(views))
    return made


def runtime_named(name: str) -> Runtime:
    """The runtime of this name, or an error that tells which there are."""
    if name.startswith(NAME):
        return SharedPrefix(name.removeprefix(NAME))
    if name not in RUNTIMES:
        raise ValueError(
            f"runtime must be one of {tuple(RUNTIMES)} or {NAME}LAYER, but got {name!r}"
        )
    return RUNTIMES[name]


def available(classifier: Classifier) -> list[tuple[str, Precision]]:
    """Every runtime and precision that is installed and that this machine has for the classifier."""
    device = device_of(classifier, torch.empty(0))
    found: list[tuple[str, Precision]] = []
    for name, runtime in RUNTIMES.items():
        try:
            found += [(name, precision) for precision in runtime.precisions(device)]
        except ImportError:
            continue
    return found
