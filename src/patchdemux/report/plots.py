"""Precision-recall plots as SVG that follow the page's own colors, light or dark."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from patchdemux.metrics.curves import Curve
from patchdemux.report.summary import KEY_RECALLS, NAMES, Row

COLORS = {
    "undefended": "#8a8f98",
    "defended": "#2f6fde",
    "certified": "#d9822b",
    "location": "#1f9d6b",
    "location-fn": "#b04fc4",
    "location-fp": "#c4447a",
    "exact": "#7a5cd6",
}
_INK = "#010203"  # drawn in this color, shown in the color of the text around the picture
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "patchdemux",  # the same picture gives the same file
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}


def plot_curves(rows: Iterable[Row], title: str) -> str:
    """Precision against recall, the precision at the key recalls marked, as one SVG element."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 4.3), layout="constrained")
        axes = figure.subplots()
        for row in rows:
            recall, precision = steps(row.curve)
            label = f"{NAMES[row.setting]}: AP {100 * row.curve.paper_average_precision():.1f}"
            axes.plot(recall, precision, color=COLORS[row.setting], linewidth=2, label=label)
            marks = [100 * row.curve.precision_at(r) for r in KEY_RECALLS]
            axes.plot(
                [100 * r for r in KEY_RECALLS], marks, "o", color=COLORS[row.setting], markersize=5
            )
        axes.set(xlim=(0, 100), ylim=(0, 102), xlabel="recall (%)", ylabel="precision (%)")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.grid(color=_INK, alpha=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower left", frameon=False, fontsize=9)
        return as_svg(figure)


def steps(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The curve in percent, cut to 1,000 points at most for the eye."""
    keep = np.unique(np.linspace(0, len(curve.recall) - 1, 1000).astype(int))
    return 100 * curve.recall[keep], 100 * curve.precision[keep]


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element for an HTML page, its ink in the color of the page's text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")
