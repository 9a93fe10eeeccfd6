"""A run as the paper's table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from patchdemux.bounds import ScoreBounds
from patchdemux.metrics import PaperRow, paper_protocol
from patchdemux.metrics.curves import Setting
from patchdemux.report.summary import (
    KEY_RECALLS,
    NAMES,
    PRECISION_COLUMNS,
    SETTING_COLUMNS,
    TABLE_SETTINGS,
    curve_table,
    summarize,
)
from patchdemux.report.tables import Cell, Column, Table
from patchdemux.runs import Run

Protocol = Literal["curve", "paper"]
Margin = float | Literal["measured"]
PAPER_COLUMNS = (
    *PRECISION_COLUMNS,
    Column(
        "paper_average_precision",
        "AP",
        "area between 25% and 100% recall over 0.75, at the thresholds of the paper's lists",
    ),
)


def run_table(
    run: Run,
    protocol: Protocol = "curve",
    settings: Iterable[Setting] = TABLE_SETTINGS,
    margin: Margin = "measured",
) -> Table:
    """Precision at 25, 50 and 75% recall and average precision of a run.

    Args:
        run: what was measured.
        protocol: "curve" goes through every threshold; "paper" measures at the thresholds of the
            published scripts and bisects between them.
        settings: the rows.
        margin: by which every bound is moved outward; see `Run.bounds`.
    """
    if protocol not in get_args(Protocol):
        raise ValueError(f"protocol must be one of {get_args(Protocol)}, but got {protocol!r}")
    bounds = run.bounds(margin)
    notes = [*gaps(run), margin_note(run, margin)]
    if protocol == "curve":
        rows = summarize(bounds, run.targets, settings)
        return curve_table(rows, caption(run), notes, **about(run, margin), protocol=protocol)
    cells = [paper_cells(bounds, run.targets, setting) for setting in settings]
    if any(figure != figure for row in cells for figure in row.values()):
        notes.append(
            "Where there is no figure, the published thresholds and their bisection come to no recall "
            "within half a point of it."
        )
    columns = (*SETTING_COLUMNS, *PAPER_COLUMNS)
    return Table(caption(run), columns, cells, notes, {**about(run, margin), "protocol": protocol})


def paper_cells(bounds: ScoreBounds, targets: Any, setting: Setting) -> dict[str, Cell]:
    """One row of the paper's own protocol."""
    row: PaperRow = paper_protocol(bounds, targets, setting)
    figures = [*(row.precision_at[recall] for recall in KEY_RECALLS), row.average_precision]
    keys = [column.key for column in PAPER_COLUMNS]
    return {"setting": setting, "name": NAMES[setting], **dict(zip(keys, figures, strict=True))}


def caption(run: Run) -> str:
    """What was measured, in one line."""
    return f"{run.path.name}: {len(run):,} images, {run.against}, {run.defense}"


def gaps(run: Run) -> list[str]:
    """What a figure does not cover: images left out, and images that are not done yet."""
    notes = []
    if not run.complete:
        notes.append(
            f"The run is not finished: {len(run):,} of {len(run.done):,} images are in the figures."
        )
    if run.left_out:
        are = "image was" if len(run.left_out) == 1 else "images were"
        notes.append(f"{len(run.left_out):,} {are} left out as unreadable, and in no figure.")
    return notes


def margin_note(run: Run, margin: Margin) -> str:
    """The room that bounds have for rounding."""
    if margin == 0:
        return "No numerical margin is subtracted from the bounds."
    if margin == "measured":
        return (
            f"Every bound is moved outward by {run.margin:.2g}, the margin measured for this run."
        )
    return f"Every bound is moved outward by a margin of {margin:g}, which was given."


def about(run: Run, margin: Margin) -> dict[str, Any]:
    """What a program needs to tell runs apart."""
    return {
        "run": run.path.name,
        "images": len(run),
        "complete": run.complete,
        "left_out": len(run.left_out),
        "classes": len(run.class_names),
        "threat": dict(run.attributes["threat"]),
        "footprint": run.attributes.get("footprint"),
        "defense": run.defense,
        "margin": run.margin if margin == "measured" else margin,
        "fingerprint": run.attributes["fingerprint"],
    }
