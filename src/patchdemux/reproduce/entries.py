"""What an experiment consists of: a model, data, and the variants that are run."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from patchdemux.metrics.curves import Setting

Axis = Literal["masks", "patch"]
NO_MASKS = "no masks"
"""The row of a timing that has no defense."""


@dataclass(frozen=True)
class Architecture:
    """A model of the paper, and the checkpoint to get for it.

    Attributes:
        name: what `load_model` calls it.
        title: what the paper calls it.
        size: height and width of its input.
        checkpoint: the public weights, in words.
        place: where they are looked for without `--weights`.
    """

    name: str
    title: str
    size: int
    checkpoint: str
    place: str


@dataclass(frozen=True)
class Photos:
    """A data set of the paper, and how to get it.

    Attributes:
        title: what it is called in public, with its files.
        layout: what lies where in the folder.
        place: where it is looked for without `--data`.
        options: the options of `open_dataset`.
    """

    title: str
    layout: str
    place: str
    options: MappingProxyType[str, str]


@dataclass(frozen=True)
class Variant:
    """One row of an experiment: one run, or one timing.

    Attributes:
        name: what the table calls it.
        patch: the patch's share of the image's area.
        masks: rows and columns of masks.
        checkpoint: which of several weights it takes; None where there is only one file.
        training: how those weights came to be.
    """

    name: str
    patch: str = "2%"
    masks: int = 6
    checkpoint: str | None = None
    training: str = ""


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: of the command, and of its entries among the published figures.
        sentence: what it shows.
        source: which of the paper's tables or figures.
        variants: the runs.
        settings: rows of the table for each run; none where the runtime is measured.
        key_recalls: whether precision at the key recalls is part of the table.
        axis: what a sweep varies, and its figure has as horizontal axis.
        images: of a timing.
        threshold: of a timing, as probability.
    """

    name: str
    sentence: str
    source: str
    model: Architecture
    data: Photos
    variants: tuple[Variant, ...]
    settings: tuple[Setting, ...] = ()
    key_recalls: bool = True
    axis: Axis | None = None
    images: int = 0
    threshold: float = 0.0

    @property
    def timed(self) -> bool:
        return not self.settings

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows of its table."""
        return (NO_MASKS,) * self.timed + tuple(variant.name for variant in self.variants)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Names of the weights that it compares; empty where it takes one file."""
        return tuple(v.checkpoint for v in self.variants if v.checkpoint is not None)
