"""The paper's table for one data set: every setting's curve and the figures read off it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from patchdemux.bounds import ScoreBounds
from patchdemux.metrics.curves import Curve, Setting, precision_recall_curve
from patchdemux.report.tables import Cell, Column, Table

NAMES: dict[Setting, str] = {
    "undefended": "Undefended, no attack",
    "defended": "Defended, no attack",
    "certified": "Certified (Alg. 2)",
    "location": "Location-aware (Alg. 3)",
    "location-fn": "Attacker prefers misses",
    "location-fp": "Attacker prefers alarms",
    "exact": "Exact worst case",
}
MEANINGS: dict[Setting, str] = {
    "undefended": "the classifier as it is.",
    "defended": "the price of the defense on clean images.",
    "certified": "guaranteed; every label that a patch somewhere could turn counts as wrong, as if "
    "each label had an attacker of its own.",
    "location": "guaranteed; one patch is in one place, but the most misses and the most false "
    "alarms are counted each at its own.",
    "location-fn": "one patch where it hides the most labels, then fakes the most.",
    "location-fp": "one patch where it fakes the most labels, then hides the most.",
    "exact": "guaranteed; the lowest precision, and the lowest recall, that one patch per image can "
    "cause against the proved bounds.",
}
TABLE_SETTINGS: tuple[Setting, ...] = (
    "undefended",
    "defended",
    "certified",
    "location",
    "exact",
)
KEY_RECALLS = (0.25, 0.5, 0.75)
PRECISION_COLUMNS = tuple(
    Column(f"precision_at_{100 * r:.0f}", f"P@{r:.0%}", f"precision at {r:.0%} recall")
    for r in KEY_RECALLS
)
SETTING_COLUMNS = (
    Column("setting", figure=False, for_people=False),
    Column("name", "setting", figure=False),
)
CURVE_COLUMNS = (
    *PRECISION_COLUMNS,
    Column(
        "paper_average_precision",
        "AP paper",
        "area under the curve between 25% and 100% recall, over 0.75",
    ),
    Column("average_precision", "AP", "the usual average precision, from 0% recall"),
    Column("paper_average_precision_error", for_people=False),
)
HEADINGS = {column.heading: column.meaning for column in CURVE_COLUMNS if column.for_people}


@dataclass(frozen=True, eq=False)
class Row:
    """One setting of the paper's table."""

    setting: Setting
    curve: Curve

    @property
    def name(self) -> str:
        return NAMES[self.setting]

    @property
    def figures(self) -> tuple[float, ...]:
        """Precision at the key recalls, the paper's average precision, and the usual one."""
        return (
            *(self.curve.precision_at(recall) for recall in KEY_RECALLS),
            self.curve.paper_average_precision(),
            self.curve.average_precision(),
        )

    @property
    def cells(self) -> dict[str, Cell]:
        """The row of a table with the columns `SETTING_COLUMNS` and `CURVE_COLUMNS`."""
        keys = [column.key for column in CURVE_COLUMNS]
        figures = zip(keys, (*self.figures, self.curve.error), strict=True)
        return {"setting": self.setting, "name": self.name, **dict(figures)}


def summarize(
    bounds: ScoreBounds, targets: Any, settings: Iterable[Setting] = TABLE_SETTINGS
) -> list[Row]:
    """The curves of the settings, in the order of the paper's tables."""
    return [Row(s, precision_recall_curve(bounds, targets, s)) for s in settings]


def curve_table(
    rows: Sequence[Row], caption: str, notes: Sequence[str] = (), **about: Any
) -> Table:
    """The paper's table from the curves through every threshold."""
    return Table(
        caption,
        (*SETTING_COLUMNS, *CURVE_COLUMNS),
        [row.cells for row in rows],
        (*notes, *grid_notes(rows)),
        about,
    )


def grid_notes(rows: Iterable[Row]) -> list[str]:
    """How far the averages of curves with fewer than all thresholds may be off."""
    worst = max((row.curve.error for row in rows), default=0.0)
    if not worst:
        return []
    return [
        f"The attackers with a preference and the exact worst case are measured on a grid of "
        f"thresholds; AP paper through every threshold differs by {100 * worst:.2g} points at most."
    ]
