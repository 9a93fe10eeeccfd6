"""What runs the model: eager or compiled PyTorch, ONNX Runtime, OpenVINO; and in which precision."""

from patchdemux.runtimes.base import PRECISIONS, Precision, RuntimeClassifier
from patchdemux.runtimes.choose import RUNTIMES, available, make_runtime
from patchdemux.runtimes.fastest import Fastest, fastest

__all__ = [
    "PRECISIONS",
    "RUNTIMES",
    "Fastest",
    "Precision",
    "RuntimeClassifier",
    "available",
    "fastest",
    "make_runtime",
]
