"""Models: those that ship, the paper's from their checkpoints, and yours from any usual library."""

from patchdemux.models.checkpoints import load_checkpoint
from patchdemux.models.coco import coco_classifier
from patchdemux.models.detectors import (
    from_detector,
    listed_boxes,
    sigmoid_boxes,
    softmax_boxes,
)
from patchdemux.models.ensemble import from_binary_models
from patchdemux.models.libraries import from_hugging_face, from_timm, from_torchvision
from patchdemux.models.loading import load_model as load
from patchdemux.models.programs import from_exported, from_onnx, from_torchscript
from patchdemux.models.query2label import query2label
from patchdemux.models.visible_tokens import drop_hidden_tokens

__all__ = [
    "coco_classifier",
    "drop_hidden_tokens",
    "from_binary_models",
    "from_detector",
    "from_exported",
    "from_hugging_face",
    "from_onnx",
    "from_timm",
    "from_torchscript",
    "from_torchvision",
    "listed_boxes",
    "load",
    "load_checkpoint",
    "query2label",
    "sigmoid_boxes",
    "softmax_boxes",
]
