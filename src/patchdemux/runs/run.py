"""Reading a run again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from patchdemux.bounds import ScoreBounds
from patchdemux.footprint import Footprint
from patchdemux.runs.errors import RunError
from patchdemux.runs.store import RunStore, reading
from patchdemux.threat import PatchThreat


@dataclass(frozen=True, eq=False)
class Run:
    """A data set that was evaluated, as it lies on disk; `Run.open` makes it.

    Attributes:
        path: where it lies.
        attributes: everything that was recorded with it.
        done: per image of the run, whether its scores are stored.
        names: names of the images that are done.
        targets: their labels.
        boxes: top, left, height and width of every region; None where regions are no boxes.
    """

    path: Path
    attributes: Mapping[str, Any]
    done: Bool[np.ndarray, " image"]
    names: tuple[str, ...]
    targets: Bool[np.ndarray, "done class"]
    boxes: Int[np.ndarray, "region 4"] | None

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
        """The run at `path`; an unfinished one only with `allow_incomplete`, as far as it is."""
        store = RunStore.open(Path(path))
        done = store.done()
        missing = len(done) - int(done.sum())
        if missing and not allow_incomplete:
            raise RunError(
                f"the run at {path} is incomplete: {missing} of {len(done)} images are missing; "
                f"start the command that wrote it again and it resumes, or take the finished images "
                f"only with allow_incomplete"
            )
        names = store.read("name")[done]
        return cls(
            path=store.path,
            attributes=store.attributes,
            done=done,
            names=tuple(str(name) for name in names),
            targets=store.read("targets")[done],
            boxes=store.read("box") if "box" in store.arrays else None,
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        state = "" if self.complete else f" of {len(self.done)}"
        return f"Run({str(self.path)!r}, {len(self)}{state} images, {self.defense})"

    @property
    def margin(self) -> float:
        """The numerical margin that was measured when the run began."""
        measured = self.attributes.get("margin")
        if measured is None:
            raise RunError(
                f"the run at {self.path} has no measured margin; give one: bounds(margin=...), or "
                f"margin=0 to go without"
            )
        return float(measured["value"])

    def bounds(self, margin: float | Literal["measured"] = "measured") -> ScoreBounds:
        """The scores of all images that are done, with their bounds.

        Args:
            margin: every bound is moved outward by so much, for what batches change in a score;
                "measured" is `Run.margin`, and 0 gives the bounds as they were computed.
        """
        if not len(self):
            raise RunError(f"the run at {self.path} has no finished images yet")
        store = RunStore.open(self.path)
        clean, defended, lower, upper = (
            self._finished(store.read(name)) for name in ("clean", "defended", "lower", "upper")
        )
        with reading(self.path):  # a chunk that was lost reads as NaN, which is refused
            bounds = ScoreBounds(clean, defended, lower, upper)
        return bounds.widened(self.margin if margin == "measured" else margin)

    def _finished(self, scores: np.ndarray) -> np.ndarray:
        return scores if self.complete else scores[self.done]

    @property
    def complete(self) -> bool:
        return bool(self.done.all())

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.attributes["class_names"])

    @property
    def threat(self) -> PatchThreat:
        return PatchThreat(**self.attributes["threat"])

    @property
    def footprint(self) -> Footprint | None:
        """The patch on the photos that the threat stands for; None if the threat is on the input."""
        record = self.attributes.get("footprint")
        return None if record is None else Footprint.from_record(record)

    @property
    def against(self) -> str:
        """The threat in words, with the patch on the photo that it stands for."""
        footprint = self.footprint
        return f"{self.threat}" if footprint is None else f"{self.threat} ({footprint.patch})"

    @property
    def defense(self) -> str:
        """The defense with its settings, in words."""
        return str(self.attributes["defense"])

    @property
    def left_out(self) -> tuple[Mapping[str, str], ...]:
        """Name and reason of every image that could not be read."""
        return tuple(self.attributes["left_out"])

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The named fields that decide the scores."""
        fields: Mapping[str, Any] = self.attributes["fingerprint_fields"]
        return fields
