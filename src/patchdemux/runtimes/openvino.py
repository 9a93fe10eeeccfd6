"""OpenVINO, on the CPU."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
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
    own_threads = True

    @property
    def version(self) -> str:
        return str(_openvino().__version__)

    def precisions(self, device: torch.device) -> tuple[Precision, ...]:
        able = (
            _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") if device.type == "cpu" else ()
        )
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
        threads = torch.get_num_threads()
        settings = {
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "PERFORMANCE_HINT": "THROUGHPUT",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": str(threads),
        }
        compiled = _core().compile_model(folder / FILE, "CPU", settings)
        return OpenVINOSession(_openvino().AsyncInferQueue(compiled, threads), threads)


class OpenVINOSession:
    """One compiled model, with a stream per thread.

    A batch is cut into small pieces that the streams work on side by side, as many for each. Threads
    that need not wait for each other within a piece, and pieces that fit into their caches, are a fifth
    faster.
    """

    PIECE = 4
    """Views of a piece at most."""

    def __init__(self, streams: Any, count: int) -> None:
        self._streams, self._count = streams, count
        self._answers: dict[int, Tensor] = {}
        answers = self._answers

        def keep(request: Any, place: int) -> None:
            answers[place] = torch.from_numpy(request.get_output_tensor(0).data.copy())

        # Once: with a new function for every batch, OpenVINO keeps the images of all of them.
        streams.set_callback(keep)

    def __call__(self, images: Tensor) -> Tensor:
        views = images.cpu().contiguous().numpy()
        each = -(-len(views) // (self.PIECE * self._count))
        pieces = np.array_split(views, min(each * self._count, len(views)))
        self._answers.clear()
        for place, piece in enumerate(pieces):
            self._streams.start_async([piece], place, share_inputs=True)
        self._streams.wait_all()
        return torch.cat([self._answers[place] for place in range(len(pieces))]).float()


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
