"""Several runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchdemux.metrics.curves import Setting
from patchdemux.report.facts import readable
from patchdemux.report.page import Page
from patchdemux.report.plots import Line, plot_file, plot_lines
from patchdemux.report.results import Margin, about, gaps, margin_note
from patchdemux.report.summary import (
    CURVE_COLUMNS,
    NAMES,
    SETTING_COLUMNS,
    TABLE_SETTINGS,
    Row,
    grid_notes,
    summarize,
)
from patchdemux.report.tables import Column, Table
from patchdemux.runs import Run

LABELS = ("images", "names", "class_names", "targets")
COLORS = ("#2f6fde", "#d9822b", "#1f9d6b", "#b04fc4", "#8a8f98", "#c4447a", "#7a5cd6", "#5f8a1f")
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs, each with a name of its own and its curves."""

    runs: Mapping[str, Run]
    rows: Mapping[str, Sequence[Row]]
    margin: Margin = "measured"

    @property
    def warnings(self) -> list[str]:
        """What makes the runs not comparable; empty if all are of the same data."""
        first, *others = self.runs
        return [warning for other in others if (warning := self._warning(first, other)) is not None]

    def _warning(self, one: str, other: str) -> str | None:
        fields = [self.runs[name].fingerprint for name in (one, other)]
        changed = [name for name in data_of(*fields) if fields[0].get(name) != fields[1].get(name)]
        if not changed:
            return None
        listed = ", ".join(dict.fromkeys(name.removeprefix("data: ") for name in changed))
        if set(changed) & set(LABELS):
            return (
                f"{one} and {other} are of different images or labels (they differ in: {listed}), "
                f"so the difference of their figures is not that of model or defense alone."
            )
        return (
            f"{one} and {other} have images of the same names and labels, but their data differ in: "
            f"{listed}."
        )

    @property
    def table(self) -> Table:
        """All figures, setting by setting."""
        settings = dict.fromkeys(row.setting for rows in self.rows.values() for row in rows)
        cells = [
            {"run": name, **row.cells}
            for setting in settings
            for name, rows in self.rows.items()
            for row in rows
            if row.setting == setting
        ]
        return Table(
            f"Comparison of {len(self.runs)} runs",
            (*SETTING_COLUMNS, Column("run", "run", figure=False), *CURVE_COLUMNS),
            cells,
            [*(f"Warning: {text}" for text in self.warnings), *self._notes],
            {"runs": [{**about(run, self.margin), "run": name} for name, run in self.runs.items()]},
        )

    @property
    def _notes(self) -> list[str]:
        notes = [
            f"{name}: {note}"
            for name, run in self.runs.items()
            for note in (*gaps(run), margin_note(run, self.margin))
        ]
        return [*notes, *grid_notes(row for rows in self.rows.values() for row in rows)]

    @property
    def panels(self) -> dict[str, list[Line]]:
        """One plot per setting, with a curve per run."""
        panels: dict[str, list[Line]] = {}
        for number, (name, rows) in enumerate(self.rows.items()):
            style = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
            for row in rows:
                panels.setdefault(NAMES[row.setting], []).append(Line(name, row.curve, *style))
        return panels

    @property
    def page(self) -> Page:
        """The page about the comparison; `render_page` makes it HTML."""
        return Page(
            title=f"Comparison of {len(self.runs)} runs",
            introduction=[
                f"{name}: {len(run):,} images, {run.attributes['model']}, {run.defense}, "
                f"against one {run.against}."
                for name, run in self.runs.items()
            ],
            results=replace(self.table, notes=self._notes),
            plots=[plot_lines(lines, title) for title, lines in self.panels.items()],
            warnings=self.warnings,
            facts=self.differing,
            facts_title="Where the runs differ",
        )

    @property
    def differing(self) -> dict[str, dict[str, str]]:
        """The recorded fields that are not the same in all runs."""
        fields = {name: run.fingerprint for name, run in self.runs.items()}
        known = dict.fromkeys(field for recorded in fields.values() for field in recorded)
        values = {
            field: {name: readable(recorded.get(field)) for name, recorded in fields.items()}
            for field in known
        }
        return {field: by_run for field, by_run in values.items() if len(set(by_run.values())) > 1}

    @property
    def svg(self) -> str:
        """All plots as the text of an SVG file."""
        return plot_file(self.panels)


def compare(
    runs: Sequence[Run],
    settings: Iterable[Setting] = TABLE_SETTINGS,
    margin: Margin = "measured",
) -> Comparison:
    """Measure several runs; the scores of one of them are in memory at a time."""
    if len(runs) < 2:
        raise ValueError(f"a comparison needs at least two runs, but got {len(runs)}")
    named = dict(zip(names_of(runs), runs, strict=True))
    settings = tuple(settings)
    rows = {
        name: summarize(run.bounds(margin), run.targets, settings) for name, run in named.items()
    }
    return Comparison(named, rows, margin)


def names_of(runs: Sequence[Run]) -> list[str]:
    """The name of every run's folder; its path where two have the same name."""
    count = Counter(run.path.name for run in runs)
    names = [run.path.name if count[run.path.name] == 1 else str(run.path) for run in runs]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ValueError(f"the run {twice[0]} is given twice")
    return names


def data_of(*fields: Mapping[str, Any]) -> list[str]:
    """The fields that say what the images and labels are."""
    known = dict.fromkeys(name for recorded in fields for name in recorded)
    own = (*LABELS, "pixels", "image_size")
    return [name for name in known if name in own or name.startswith("data: ")]
