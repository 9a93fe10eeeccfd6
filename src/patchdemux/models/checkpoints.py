"""The paper's models from published checkpoints of ASL, Query2Label and PatchDEMUX.

Architecture and sizes are read off the tensors. Photos become the input as in the paper: squashed to
the model's size, in [0, 1], without normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models.cvt import STRIDE, CvtFeatures, from_published, widths_and_depths
from patchdemux.models.loading import PAPER, fit, layers, read_file, shape_of, state_of
from patchdemux.models.query2label import HEADS, Query2Label
from patchdemux.models.tresnet import tresnet

TRESNET, QUERY2LABEL = PAPER
JUDGES = {TRESNET: "head.fc.bias", QUERY2LABEL: "query_embed.weight"}
"""Tensors with a row per class."""
TRESNET_SIZE = 448
CVT_HEAD = 64
"""Channels per attention head of all published CvT models; no tensor tells them."""


def load_checkpoint(path: str | Path, architecture: str | None = None) -> Classifier:
    """A classifier from a checkpoint of TResNet, or of Query2Label with a CvT backbone.

    Class names are those that the file holds. A file of 80 classes without names is taken for one of
    MS-COCO, with its classes in the order of their ids; give `class_names` if it is not.

    Args:
        path: a PyTorch file or safetensors; it is read without running code.
        architecture: which of the two it must be, by its name in `load_model`.
    """
    path = Path(path)
    content = read_file(path)
    state = state_of(content, path)
    found = architecture_of(state, path)
    if architecture not in (None, found):
        raise ValueError(f"{path} holds weights of {found}, not of {architecture}")
    if found == TRESNET:
        model, size = tresnet(state, str(path)), (TRESNET_SIZE, TRESNET_SIZE)
    else:
        model = query2label_cvt(state, str(path))
        rows, columns = model.position.shape[2:]
        size = (rows * STRIDE, columns * STRIDE)
    names = names_of(content, path)
    classes = len(state[JUDGES[found]])
    if names is None and classes == len(CLASS_NAMES):
        names = CLASS_NAMES
    if names is not None and len(names) != classes:
        raise ValueError(f"{path} has {classes} classes, but names {len(names)}")
    classifier = Classifier(model.eval(), class_names=names, image_size=size)
    classifier.channels_last = found == TRESNET  # CvT calls `view` on its features
    return classifier


def architecture_of(state: Mapping[str, Tensor], path: Path) -> str:
    """Whose tensors these are."""
    if any(name.startswith("body.layer4.") for name in state):
        return TRESNET
    if any(name.startswith(("backbone.0.stage2.", "backbone.encoder.stages.2.")) for name in state):
        return QUERY2LABEL
    raise ValueError(
        f"{path} holds neither a TResNet nor Query2Label with a CvT backbone; its first tensor is "
        f"{next(iter(state))}. Weights of another model need its name: --model timm:NAME --weights ..."
    )


def query2label_cvt(
    state: Mapping[str, Tensor],
    source: str,
    *,
    cvt_heads: Sequence[int] | None = None,
    heads: int = HEADS,
) -> Query2Label:
    """Query2Label with a CvT backbone, with all sizes that the tensors of a checkpoint tell.

    Args:
        state: under the published names, or those of the model here.
        source: what errors call it.
        cvt_heads: attention heads of the backbone's stages; None: as in the published CvT models.
        heads: of the decoder.
    """
    state = {renamed(name): tensor for name, tensor in state.items()}
    widths, depths = widths_and_depths(state, source)
    cvt_heads = cvt_heads or [max(1, width // CVT_HEAD) for width in widths]
    _, width, rows, columns = shape_of("position", state, source, 4)
    classes, _ = shape_of("query_embed.weight", state, source, 2)
    feedforward, _ = shape_of("transformer.decoder.layers.0.linear1.weight", state, source, 2)
    with torch.device("meta"):  # the tensors are taken as they are: no second copy, no initialising
        model = Query2Label(
            CvtFeatures(widths, depths, cvt_heads),
            channels=widths[-1],
            grid=(rows, columns),
            classes=classes,
            width=width,
            feedforward=feedforward,
            encoders=layers(state, "transformer.encoder.layers"),
            decoders=layers(state, "transformer.decoder.layers"),
            heads=heads,
        )
    fit(model, state, source)
    return model


def renamed(name: str) -> str:
    """What a tensor of the published model is called here."""
    if name == "backbone.1.pe":
        return "position"
    if name.startswith("backbone.0."):
        return "backbone." + from_published(name.removeprefix("backbone.0."))
    return name


def names_of(content: Any, path: Path) -> Sequence[str] | None:
    """The class names of an ASL checkpoint: its `idx_to_class`, in order."""
    names = content.get("idx_to_class")
    if names is None:
        return None
    try:
        ordered = {int(index): str(name) for index, name in names.items()}
        return [ordered[index] for index in range(len(ordered))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: idx_to_class must map 0, 1, 2, ... to names") from error
