"""The paper's figures, read from one small data file, each with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from patchdemux.reproduce.experiments import EXPERIMENTS

FILE = Path(__file__).with_name("published.toml")
Key = tuple[str, str, str, str]
"""Experiment, variant, setting and figure."""


@dataclass(frozen=True)
class PublishedFigure:
    """One figure of the paper, with where it was read."""

    experiment: str
    table: str
    variant: str
    setting: str
    figure: str
    value: float
    source: str

    @property
    def key(self) -> Key:
        return self.experiment, self.variant, self.setting, self.figure


@dataclass(frozen=True)
class Published:
    """The paper, and those of its figures that are at hand."""

    paper: str
    figures: dict[Key, PublishedFigure]

    def value(self, key: Key) -> float | None:
        """The published figure, or None where it is not at hand."""
        return self.figures[key].value if key in self.figures else None


def read_published(path: Path = FILE) -> Published:
    """The file's figures; an entry that is incomplete or belongs to no experiment is an error."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    names = [field.name for field in fields(PublishedFigure)]
    figures: dict[Key, PublishedFigure] = {}
    for place, entry in enumerate(content["figures"]):
        where = f"{path}: entry {place} of figures"
        if sorted(entry) != sorted(names):
            raise ValueError(f"{where} must have {', '.join(names)}, but has {', '.join(entry)}")
        for name in names:
            kinds = (int, float) if name == "value" else (str,)
            if not isinstance(entry[name], kinds) or entry[name] == "":
                raise ValueError(f"{where}: {name} is {entry[name]!r}")
        figure = PublishedFigure(**entry)
        known = EXPERIMENTS.get(figure.experiment)
        if known is None or figure.variant not in known.rows:
            raise ValueError(
                f"{where}: no experiment {figure.experiment!r} has a variant {figure.variant!r}"
            )
        if figure.key in figures:
            raise ValueError(f"{where} repeats an earlier one: {', '.join(figure.key)}")
        figures[figure.key] = figure
    return Published(content["paper"], figures)
