"""What decides the scores of a run, as named fields: the same fields give the same bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.engine import device_of
from patchdemux.footprint import Footprint
from patchdemux.runs.errors import RunError
from patchdemux.runtimes.base import RuntimeClassifier
from patchdemux.runtimes.identity import bytes_of, model_fields, sha256

Fields = dict[str, Any]
SAMPLE = 8  # images whose pixels are part of the fingerprint: all of them would take hours


def fingerprint(
    demux: PatchDemux,
    dataset: ImageSet,
    images: Sequence[int],
    *,
    batch_size: int,
    images_per_chunk: int,
    model_id: str | None = None,
    footprint: Footprint | None = None,
) -> Fields:
    """The fields that two runs must share to be one; plain JSON values or sha256 sums.

    The sizes of batches and chunks, the device and torch are among them: they change the last bits
    of a score.
    """
    fields = {
        **classifier_fields(demux.classifier),
        "model_id": model_id,
        "image_size": dataset.image_size,
        "threat": settings_of("threat", demux.threat),
        **({} if footprint is None else {"footprint": str(footprint)}),
        "defense": settings_of("defense", demux.defense),
        "fill": demux.engine.fill,
        "batch_size": batch_size,
        "images_per_chunk": images_per_chunk,
        **data_fields(dataset, images),
    }
    plain: Fields = json.loads(json.dumps(fields))  # tuples become lists, as in a run that was read
    return plain


def digest(fields: Fields) -> str:
    """One sum over all fields."""
    return sha256([json.dumps(fields, sort_keys=True).encode()])


def differences(old: Fields, new: Fields) -> list[str]:
    """The fields that differ, in words, with both values."""
    missing = object()
    return [
        f"{name} was {_short(old.get(name))}, but is {_short(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name, missing) != new.get(name, missing)
    ]


def classifier_fields(classifier: Classifier) -> Fields:
    """What the model is, and what runs it."""
    device = device_of(classifier, torch.empty(0))
    return {
        **model_fields(classifier),
        "mean": classifier.mean.flatten().tolist(),
        "std": classifier.std.flatten().tolist(),
        "runtime": runtime_of(classifier),
        "precision": precision_of(classifier, device),
        "device": device_name(device),
        "torch": torch.__version__,
    }


def data_fields(dataset: ImageSet, images: Sequence[int]) -> Fields:
    """What the images are: the data set's own description, names, labels, and pixels of a sample."""
    sample = sorted({len(images) * part // SAMPLE for part in range(SAMPLE)}) if images else []
    pixels = [dataset[images[place]] for place in sample]
    names = json.dumps([dataset.names[image] for image in images]).encode()
    return {
        "images": len(images),
        "names": sha256([names]),
        "class_names": sha256([json.dumps(list(dataset.class_names)).encode()]),
        "targets": sha256([np.packbits(dataset.targets[list(images)].astype(bool)).tobytes()]),
        "pixels": sha256(bytes_of(pixels)),
        **{f"data: {name}": value for name, value in dataset.description.items()},
    }


def settings_of(what: str, value: object) -> str:
    """The settings of a threat or defense, as its repr: a dataclass has one that tells them all."""
    text = repr(value)
    if " at 0x" in text:
        raise RunError(
            f"the {what} {type(value).__name__} does not tell its settings, so a run cannot record "
            f"them: make it a dataclass, or give it a __repr__ that names them"
        )
    return text


def runtime_of(classifier: Classifier) -> str:
    """The runtime, with its version where that is not PyTorch's."""
    if (
        isinstance(classifier, RuntimeClassifier)
        and classifier.runtime_version != torch.__version__
    ):
        return f"{classifier.runtime} {classifier.runtime_version}"
    return classifier.runtime


def precision_of(classifier: Classifier, device: torch.device) -> str:
    """The types of the weights, and what the device may do to a product of float32 numbers."""
    types = sorted({str(w.dtype).removeprefix("torch.") for w in classifier.parameters()})
    if isinstance(classifier, RuntimeClassifier):
        types = [classifier.precision]
    words = [" and ".join(types) or "float32"]
    if device.type == "cuda":
        words.append(f"{torch.get_float32_matmul_precision()} matmul precision")
        words.append(f"tf32 convolutions {'on' if torch.backends.cudnn.allow_tf32 else 'off'}")
    if torch.is_autocast_enabled(device.type):
        words.append(f"autocast to {torch.get_autocast_dtype(device.type)}".replace("torch.", ""))
    return ", ".join(words)


def device_name(device: torch.device) -> str:
    """The kind of processor that runs the model."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        return f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return device.type


def _short(value: Any) -> str:
    """A value as people read it; of a sum, the beginning."""
    if isinstance(value, str):
        return value[:19] if value.startswith("sha256:") else value
    return "not set" if value is None else json.dumps(value)
