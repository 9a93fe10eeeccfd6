"""OpenVINO, on the CPU."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.jit._trace import TracerWarning

from patchdemux.classifier import Classifier
from patchdemux.runtimes.base import Precision, Runtime, Session
from patchdemux.runtimes.cache import cached
from patchdemux.runtimes.exported import graph_of

FILE = "model.xml"
CAPABILITIES: dict[str, Precision] = {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}
HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVINO(Runtime):
    """OpenVINO; half precision where the processor has it."""

    name = "openvino"

    @property
    def version(self) -> str:
        return str(_openvino().__version__)

    def precisions(self, device: torch.device) -> tuple[Precision, ...]:
        able = _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return tuple(name for word, name in CAPABILITIES.items() if word in able)

    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> Session:
        graph = graph_of(classifier, self.name)

        def export(folder: Path) -> None:
            with warnings.catch_warnings():  # it uses the tracer, which warns of its age and of ifs
                warnings.filterwarnings("ignore", module=r"torch\.jit\..*")
                warnings.filterwarnings("ignore", category=TracerWarning)
                model = _openvino().convert_model(
                    graph, example_input=torch.rand(2, *shape), input=[-1, *shape]
                )
            _openvino().save_model(model, folder / FILE, compress_to_fp16=False)

        folder = cached(self.name, self.version, classifier, shape, export)
        settings = {
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, on all cores
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        compiled = _core().compile_model(folder / FILE, "CPU", settings)
        return OpenVINOSession(compiled.create_infer_request())


class OpenVINOSession:
    """One compiled model."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __call__(self, images: Tensor) -> Tensor:
        answer = self._request.infer([images.cpu().contiguous().numpy()], share_inputs=True)
        return torch.from_numpy(answer[0].copy()).float()


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ImportError(
            "the runtime openvino needs OpenVINO: pip install 'patchdemux[openvino]'"
        ) from error
    return openvino


@cache
def _core() -> Any:
    return _openvino().Core()
