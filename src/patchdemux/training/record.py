"""What a fine-tuning leaves in its folder: its state, a log, a plot of the losses, and weights.

fields.json         what is trained, on what, and how: another of these is refused
state.pt            where it is, to go on from after a kill
masks.npy           of a search beforehand: the two masks of every image
log.jsonl           a line per step and per epoch
losses.png          the same as a picture
best.safetensors    the weights of the epoch with the lowest loss on held-out images
last.safetensors    the weights of the last epoch
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from patchdemux.runs.errors import RunError
from patchdemux.runs.fingerprint import Fields, differences

FIELDS, STATE, LOG, PLOT = "fields.json", "state.pt", "log.jsonl", "losses.png"
BEST, LAST, MASKS = "best.safetensors", "last.safetensors", "masks.npy"
PART = "part-"
"""How the names of files begin that are being written."""


class Record:
    """The folder of one fine-tuning; of several processes, only the main one writes."""

    def __init__(self, folder: Path, main: bool = True) -> None:
        self.folder, self.main = folder, main

    def begin(self, fields: Fields) -> None:
        """Begin here, or go on; a folder of another fine-tuning is refused."""
        if not self.main:
            return
        path = self.folder / FIELDS
        fields = json.loads(json.dumps(fields))  # tuples become lists, as in the file
        if path.is_file():
            changed = differences(json.loads(path.read_text("utf-8")), fields)
            if changed:
                raise RunError(
                    f"{self.folder} holds a fine-tuning of something else: {'; '.join(changed)}. Give "
                    f"another folder, or what it began with to resume it"
                )
            return
        if self.folder.exists() and any(
            not file.name.startswith(PART) for file in self.folder.iterdir()
        ):
            raise RunError(f"{self.folder} is neither empty nor the folder of a fine-tuning")
        self._write(FIELDS, lambda file: file.write_text(json.dumps(fields, indent=2), "utf-8"))

    def load(self) -> dict[str, Any] | None:
        """The state to go on from, with the log cut back to it; None at the beginning."""
        if not self.main:
            return None
        path = self.folder / STATE
        log = self.folder / LOG
        state: dict[str, Any] | None = None
        if path.is_file():
            state = torch.load(path, map_location="cpu", weights_only=True)
        if log.exists():
            os.truncate(log, 0 if state is None else state["logged"])
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Store where it is."""
        if not self.main:
            return
        logged = 0
        with self._writing(), (self.folder / LOG).open("ab") as log:
            os.fsync(log.fileno())  # a state never knows more lines than are on the disk
            logged = log.tell()
        self._write(STATE, lambda file: torch.save({**state, "logged": logged}, file))

    def log(self, **entry: Any) -> None:
        """Add a line to the log."""
        if not self.main:
            return
        with self._writing(), (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """The log so far."""
        if not self.main:
            return []
        path = self.folder / LOG
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def load_masks(self) -> Int[np.ndarray, "image 2"] | None:
        """What a search beforehand found until now; -1 for an image that it did not come to."""
        path = self.folder / MASKS
        if not self.main or not path.is_file():
            return None
        found: np.ndarray = np.load(path, allow_pickle=False)
        return found

    def save_masks(self, found: Int[np.ndarray, "image 2"]) -> None:
        """Store what a search beforehand found."""

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.save(file, found)

        self._write(MASKS, write)

    def save_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Store weights, as `--weights` and `load_weights` read them."""
        tensors = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
        self._write(name, lambda file: save_file(tensors, file))

    def plot(self) -> None:
        """Draw the losses."""
        from patchdemux.training.plot import draw_losses

        entries = self.entries()
        self._write(PLOT, lambda file: draw_losses(entries, file))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """A whole file, or none: it is written beside its place, forced to disk and then renamed."""
        if not self.main:
            return
        part = self.folder / f"{PART}{name}"
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            write(part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(self.folder / name)

    def _writing(self) -> _Writing:
        return _Writing(self.folder)


class _Writing:
    """Turns the errors of a full disk or an unwritable folder into one that says what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Each library has its own errors of a full disk: RuntimeError is that of torch.
        failed = isinstance(error, OSError | RuntimeError) and not isinstance(error, RunError)
        if failed or type(error).__name__ == "SafetensorError":
            raise RunError(
                f"cannot write to {self.folder}: {error}; solve this and run the same again to resume: "
                f"what is stored already stays"
            ) from error
