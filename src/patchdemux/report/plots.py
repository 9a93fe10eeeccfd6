"""Precision-recall plots as SVG: for the page in its own colors, light or dark, or as a file."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchdemux.metrics.curves import Curve, Setting
from patchdemux.report.summary import KEY_RECALLS, NAMES, Row

STYLES = {  # color and dashes, so that curves differ on gray paper and where they coincide
    "undefended": ("#8a8f98", "-"),
    "defended": ("#2f6fde", "-"),
    "certified": ("#d9822b", "-"),
    "location": ("#1f9d6b", "-"),
    "location-fn": ("#b04fc4", "--"),
    "location-fp": ("#c4447a", "-."),
    "exact": ("#7a5cd6", ":"),
}
PLOTS: dict[str, tuple[Setting, ...]] = {
    "Without an attack": ("undefended", "defended"),
    "Guaranteed against every patch": ("certified", "location", "exact"),
    "What an attacker can cause": ("location-fn", "location-fp", "location", "exact"),
}
_INK = "#010203"  # drawn in this color, shown in the color of the text around the picture
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}


@dataclass(frozen=True, eq=False)
class Line:
    """A curve as it is drawn."""

    label: str
    curve: Curve
    color: str
    dashes: str = "-"


def lines_of(rows: Iterable[Row]) -> list[Line]:
    """The settings of one data set, each in its own color."""
    return [Line(NAMES[row.setting], row.curve, *STYLES[row.setting]) for row in rows]


def plots_of(rows: Sequence[Row]) -> list[str]:
    """Those of `PLOTS` whose settings were all measured."""
    measured = {row.setting for row in rows}
    return [
        plot_curves([row for row in rows if row.setting in settings], title)
        for title, settings in PLOTS.items()
        if measured.issuperset(settings)
    ]


def plot_curves(rows: Iterable[Row], title: str) -> str:
    """Precision against recall, the precision at the key recalls marked, as one SVG element."""
    return plot_lines(lines_of(rows), title)


def plot_lines(lines: Sequence[Line], title: str) -> str:
    """Curves in one plot, as an SVG element for a page."""
    with rc_context({**_STYLE, "svg.hashsalt": title}):  # the same plot is the same text
        figure = Figure(figsize=(5.6, 4.3), layout="constrained")
        draw(figure.subplots(), lines, title)
        return as_element(figure, title)


def plot_file(panels: Mapping[str, Sequence[Line]]) -> str:
    """Several plots side by side, as the text of an SVG file with a white background."""
    with rc_context({**_STYLE, "svg.hashsalt": "patchdemux"}):
        rows = -(-len(panels) // 2)
        figure = Figure(figsize=(5.6 * min(len(panels), 2), 4.3 * rows), layout="constrained")
        axes = figure.subplots(rows, min(len(panels), 2), squeeze=False).flatten()
        for place, (title, lines) in zip(axes, panels.items(), strict=False):
            draw(place, lines, title)
        for place in axes[len(panels) :]:
            place.set_axis_off()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
        return buffer.getvalue().replace(_INK, "#1d2430")


def draw(axes: Axes, lines: Iterable[Line], title: str) -> None:
    """Precision against recall, a dot at every key recall that is reached."""
    for line in lines:
        recall, precision = steps(line.curve)
        label = f"{line.label}: AP {100 * line.curve.paper_average_precision():.1f}"
        style: dict[str, Any] = {"color": line.color, "zorder": 3}
        axes.plot(recall, precision, linestyle=line.dashes, linewidth=2, label=label, **style)
        reached = [r for r in KEY_RECALLS if r <= line.curve.recall[-1]]
        marks = [100 * line.curve.precision_at(r) for r in reached]
        axes.plot([100 * r for r in reached], marks, "o", markersize=5, **style)
    axes.set(xlim=(0, 101), ylim=(0, 103), xlabel="recall (%)", ylabel="precision (%)")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(color=_INK, alpha=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", frameon=False, fontsize=9)


def steps(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The curve in percent, cut to 1,000 points at most for the eye."""
    keep = np.unique(np.linspace(0, len(curve.recall) - 1, 1000).astype(int))
    return 100 * curve.recall[keep], 100 * curve.precision[keep]


def as_element(figure: Figure, title: str) -> str:
    """The figure as an SVG element for an HTML page, its ink in the color of the page's text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)  # names of groups, the same in every figure
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
