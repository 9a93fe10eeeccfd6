"""The paper's figures of its sweeps, as files: average precision or runtime against what varies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchdemux.report.summary import NAMES
from patchdemux.reproduce.entries import Experiment, Variant
from patchdemux.reproduce.jobs import Job
from patchdemux.reproduce.measure import WHOLE_CURVE
from patchdemux.reproduce.table import Line
from patchdemux.reproduce.timing import MEDIAN

_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "patchdemux", "font.size": 11}
_LABELS: dict[str, str] = {
    **{str(setting): name for setting, name in NAMES.items()},
    "single-label": "Defended, one label",
    "multi-label": "Defended, all labels",
}
_COLORS = {
    "undefended": "#8a8f98",
    "defended": "#2f6fde",
    "certified": "#d9822b",
    "location": "#1f9d6b",
    "single-label": "#d9822b",
    "multi-label": "#2f6fde",
}
_AXES = {"masks": "number of masks", "patch": "patch (% of the image)"}


def draw(
    experiment: Experiment, jobs: Sequence[Job], lines: Sequence[Line], folder: Path
) -> tuple[Path, ...]:
    """The figure of a sweep as SVG and PNG; published figures are hollow marks beside the lines."""
    variants = {job.variant.name: job.variant for job in jobs}
    measured = MEDIAN if experiment.timed else WHOLE_CURVE
    reported = MEDIAN if experiment.timed else "AP"
    with rc_context(_STYLE):
        figure = Figure(figsize=(5.8, 4.2), layout="constrained")
        axes = figure.subplots()
        places = [_place(experiment, variant) for variant in variants.values()]
        for setting in dict.fromkeys(line.setting for line in lines):
            own = [line for line in lines if line.setting == setting]
            color, label = _COLORS[setting], _LABELS[setting]
            drawn = [
                (_place(experiment, variants[line.variant]), line.measured)
                for line in own
                if line.figure == measured and line.variant in variants
            ]
            if drawn:
                axes.plot(*zip(*drawn, strict=True), "o-", color=color, linewidth=2, label=label)
            else:  # one timing, the same for every number of masks
                axes.axhline(own[0].measured, color=color, linewidth=2, label=label)
            known = [
                (_place(experiment, variants[line.variant]), line.published)
                for line in own
                if line.figure == reported and line.published is not None
                if line.variant in variants
            ]
            if known:
                axes.plot(
                    *zip(*known, strict=True),
                    "s",
                    color=color,
                    fillstyle="none",
                    label=f"{label} (published)",
                )
        _finish(axes, experiment, places)
        files = tuple(folder / f"{experiment.name}.{kind}" for kind in ("svg", "png"))
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(file, dpi=160, facecolor="white", metadata=metadata)
    return files


def _place(experiment: Experiment, variant: Variant) -> float:
    """Where a variant stands on the horizontal axis."""
    if experiment.axis == "masks":
        return variant.masks**2
    return float(variant.patch.removesuffix("%"))


def _finish(axes: Axes, experiment: Experiment, places: Sequence[float]) -> None:
    """Scales, ticks, labels and legend."""
    if experiment.axis == "patch":
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:g}" for place in places], minor=False)
    if experiment.timed:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 102)
    axes.set_xlabel(_AXES[experiment.axis or "masks"])
    axes.set_ylabel("median time per image (ms)" if experiment.timed else "AP (%)")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
