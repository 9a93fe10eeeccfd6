"""Every class of a data set: its true labels, and its average precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchdemux.bounds import ScoreBounds
from patchdemux.metrics import average_precision_per_class


@dataclass(frozen=True)
class ClassRow:
    """One class; the average precisions are NaN without a true label."""

    name: str
    labels: int
    undefended: float
    defended: float
    certified: float


def per_class(bounds: ScoreBounds, targets: Any, class_names: Sequence[str]) -> list[ClassRow]:
    """All classes, the best protected first, those without a true label last."""
    undefended, defended, certified = (
        average_precision_per_class(bounds, targets, setting)
        for setting in ("undefended", "defended", "certified")
    )
    counts = np.asarray(targets).sum(axis=0)
    rows = [
        ClassRow(
            name, int(counts[c]), float(undefended[c]), float(defended[c]), float(certified[c])
        )
        for c, name in enumerate(class_names)
    ]
    return sorted(rows, key=lambda row: (row.labels == 0, -row.certified if row.labels else 0.0))


def means(rows: Sequence[ClassRow]) -> ClassRow:
    """The mean over the classes that have a true label."""
    seen = [row for row in rows if row.labels]
    averages = np.mean([[row.undefended, row.defended, row.certified] for row in seen], axis=0)
    return ClassRow("mean (mAP)", sum(row.labels for row in seen), *map(float, averages))
