"""The paper's table for one data set: every setting's curve and the figures read off it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from patchdemux.bounds import ScoreBounds
from patchdemux.metrics.curves import Curve, Setting, precision_recall_curve

NAMES: dict[Setting, str] = {
    "undefended": "Undefended, no attack",
    "defended": "Defended, no attack",
    "certified": "Certified (Alg. 2)",
    "location": "Location-aware (Alg. 3)",
    "location-fn": "Attacker prefers misses",
    "location-fp": "Attacker prefers alarms",
    "exact": "Exact worst case",
}
TABLE_SETTINGS: tuple[Setting, ...] = (
    "undefended",
    "defended",
    "certified",
    "location",
    "exact",
)
KEY_RECALLS = (0.25, 0.5, 0.75)


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


HEADINGS = {
    **{f"P@{recall:.0%}": f"precision at {recall:.0%} recall" for recall in KEY_RECALLS},
    "AP paper": "area under the curve between 25% and 100% recall, over 0.75",
    "AP": "the usual average precision, from 0% recall",
}


def summarize(
    bounds: ScoreBounds, targets: Any, settings: Iterable[Setting] = TABLE_SETTINGS
) -> list[Row]:
    """The curves of the settings, in the order of the paper's tables."""
    return [Row(s, precision_recall_curve(bounds, targets, s)) for s in settings]
