"""ONNX Runtime, on the CPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.runtimes.base import Precision, Runtime, Session
from patchdemux.runtimes.cache import cached
from patchdemux.runtimes.exported import graph_of

FILE = "model.onnx"


class OnnxRuntime(Runtime):
    """ONNX Runtime; its CPU kernels are float32."""

    name = "onnx"
    own_threads = True

    @property
    def version(self) -> str:
        return str(_onnxruntime().__version__)

    def precisions(self, device: torch.device) -> tuple[Precision, ...]:
        _onnxruntime()
        return ("float32",) if device.type == "cpu" else ()

    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> Session:
        graph = graph_of(classifier, self.name)

        def export(folder: Path) -> None:
            with warnings.catch_warnings():  # the exporter warns of the age of what it uses itself
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                warnings.filterwarnings("ignore", category=FutureWarning)
                torch.onnx.export(
                    graph,
                    (torch.rand(2, *shape),),
                    folder / FILE,
                    dynamo=True,
                    dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                    verbose=False,
                )

        folder = cached(self.name, self.version, classifier, shape, export)
        return OnnxSession(open_session(folder / FILE))


class OnnxSession:
    """One loaded model."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._input = session.get_inputs()[0].name

    def __call__(self, images: Tensor) -> Tensor:
        (answer,) = self._session.run(None, {self._input: images.cpu().contiguous().numpy()})
        return torch.from_numpy(answer)


def open_session(path: str | Path) -> Any:
    """A model file opened by ONNX Runtime, on the CPU and with as many threads as torch."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("ONNX files need ONNX Runtime: pip install 'patchdemux[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _onnxruntime() -> Any:
    try:
        import onnx  # noqa: F401  the exporter needs both
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the runtime onnx needs ONNX Runtime: pip install 'patchdemux[onnx]'"
        ) from error
    return onnxruntime
