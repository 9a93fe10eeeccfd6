"""Models that are stored as programs: ONNX, `torch.export` and TorchScript files.

Unlike weights, a program runs when it is used: open only files that you trust.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.runtimes.identity import sha256
from patchdemux.runtimes.onnx import open_session


def from_onnx(path: str | Path, *, output: str | None = None, **options: Any) -> Classifier:
    """An ONNX file, run by ONNX Runtime on the CPU, without gradients.

    Args:
        path: a file with one input (image, channel, height, width).
        output: the name of the output that holds the logits; None: its first.
        options: of `Classifier`; without an `image_size`, the file's own if it is fixed.
    """
    model = OnnxModel(path, output)
    return Classifier(model, **{"image_size": model.image_size, **options})


def from_exported(path: str | Path, **options: Any) -> Classifier:
    """A file of `torch.export.save`. Options are those of `Classifier`; the size is the file's own."""
    with opening(path):
        model = ExportedModel(torch.export.load(path))
    return Classifier(model, **{"image_size": model.image_size, **options})


def from_torchscript(path: str | Path, **options: Any) -> Classifier:
    """A TorchScript file. Options are those of `Classifier`: the file knows neither size nor names."""
    with opening(path), warnings.catch_warnings():
        # PyTorch advises authors against the format; whoever only reads a file cannot follow that.
        warnings.filterwarnings("ignore", r"`torch\.jit", category=FutureWarning)
        return Classifier(torch.jit.load(path, map_location="cpu"), **options)


def is_torchscript(path: Path) -> bool:
    """Whether a file holds a TorchScript program, and not just tensors."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


class OnnxModel:
    """A callable from images to the logits of an ONNX file.

    Attributes:
        digest: of the file, those with its weights and the version of ONNX Runtime, so that a run
            knows what it measured.
        image_size: height and width, where the file fixes them.
    """

    def __init__(self, path: str | Path, output: str | None = None) -> None:
        self._made_of = path, output
        with opening(path):
            self._session = open_session(path)
            from onnxruntime import __version__ as runtime_version

            content = (file.read_bytes() for file in files_of(Path(path)))
            self.digest = sha256([runtime_version.encode(), *content])
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            raise ValueError(
                f"{path} must have one input (image, channel, height, width), but has "
                + ", ".join(f"{one.name} {one.shape}" for one in inputs)
            )
        names = [one.name for one in outputs]
        if output is not None and output not in names:
            raise ValueError(f"{path} has no output {output!r}; it has {', '.join(names)}")
        self._input, self._output = inputs[0].name, output or names[0]
        self._half = inputs[0].type == "tensor(float16)"
        self._batch, _, *sides = (
            side if isinstance(side, int) else None for side in inputs[0].shape
        )
        self.image_size = fixed_size(sides)

    def __call__(self, images: Tensor) -> Tensor:
        return in_batches(self._run, images, self._batch)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the file itself."""
        return OnnxModel, self._made_of

    def _run(self, images: Tensor) -> Tensor:
        pixels = images.detach().cpu().contiguous()
        pixels = pixels.half() if self._half else pixels.float()
        (answer,) = self._session.run([self._output], {self._input: pixels.numpy()})
        return torch.from_numpy(answer).float().to(images.device)


class ExportedModel(nn.Module):
    """An exported program, which has one mode only, as a module.

    Attributes:
        image_size: height and width, where the program fixes them.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.program = program.module()
        names = program.graph_signature.user_inputs
        inputs = [node.meta["val"] for node in program.graph.nodes if node.name in names]
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or inputs[0].ndim != 4:
            raise ValueError(
                f"it must have one input (image, channel, height, width), but has {len(inputs)}: "
                + ", ".join(str(name) for name in names)
            )
        sides = inputs[0].shape
        self._batch, _, *size = (side if isinstance(side, int) else None for side in sides)
        self.image_size = fixed_size(size)

    def train(self, mode: bool = True) -> ExportedModel:
        """Only noted: a program was exported in one mode, and stays in it."""
        self.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        return in_batches(self.program, images, self._batch)


@contextmanager
def opening(path: str | Path) -> Iterator[None]:
    """Whatever a library says of a file that it cannot open, in one line with the file's name."""
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be opened as a model: {reason}") from error


def files_of(path: Path) -> list[Path]:
    """An ONNX file, and those beside it that it keeps large tensors in."""
    import onnx

    tensors = onnx.load(path, load_external_data=False).graph.initializer
    places = {entry.value for t in tensors for entry in t.external_data if entry.key == "location"}
    return [path, *(path.parent / place for place in sorted(places))]


def fixed_size(sides: Sequence[int | None]) -> tuple[int, int] | None:
    """Height and width, if both are known."""
    height, width = sides
    return None if height is None or width is None else (height, width)


def in_batches(model: Callable[[Tensor], Tensor], images: Tensor, size: int | None) -> Tensor:
    """The answers of a model that may accept only batches of one size; the last is filled up."""
    if size is None or len(images) == size:
        return model(images)
    answers = []
    for batch in images.split(size):
        missing = size - len(batch)
        filled = torch.cat([batch, batch[-1:].expand(missing, -1, -1, -1)]) if missing else batch
        answers.append(model(filled)[: len(batch)])
    return torch.cat(answers)
