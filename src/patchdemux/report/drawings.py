"""Pictures as files: a photo with its certificates, and a set of masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from patchdemux.masks import MaskSet
from patchdemux.report.labels import Label, worth_a_look

PANELS = 12  # of one picture, the photo included


def draw_labels(
    file: Path,
    photo: Tensor,
    labels: Sequence[Label],
    overlay: Callable[[Label], np.ndarray | None],
) -> None:
    """The photo, and over it for every label the places from which a patch may turn it."""
    shown = worth_a_look(labels)
    drawn = shown[: PANELS - 1]
    columns = min(4, 1 + len(drawn))
    rows = -(-(1 + len(drawn)) // columns)
    figure = Figure(figsize=(max(3 * columns, 6), 3.5 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels:
        axes.set_axis_off()
    for axes, label in zip(panels, [None, *drawn], strict=False):
        axes.imshow(as_colors(photo))
        if label is not None:
            if (places := overlay(label)) is not None:
                axes.imshow(places)
            words = fill(label.verdict, 36)
            axes.set_title(f"{label.name} {label.probability:.1%}\n{words}", fontsize=9, loc="left")
    more = f" {len(shown) - len(drawn)} more labels are not drawn." if shown != drawn else ""
    figure.suptitle(
        "With its middle on a red place a patch may hide the label, on an orange one it may fake it."
        + more,
        fontsize=9,
    )
    figure.savefig(file, dpi=120)


def draw_masks(file: Path, masks: MaskSet, photo: Tensor | None) -> None:
    """All masks over the photo, one of them with the patch in it, and the photo behind each."""
    height, width = masks.image_size
    canvas = np.full((height, width, 3), 0.9) if photo is None else as_colors(photo)
    figure = Figure(figsize=(11, 1 + 5.2 * height / width), layout="constrained")
    over, behind = figure.subplots(1, 2)
    over.imshow(canvas, extent=(0, width, height, 0))
    over.set(xticks=[0, width], yticks=[0, height])
    for number, (top, left, tall, wide) in enumerate(masks.boxes.tolist()):
        over.add_patch(Rectangle((left, top), wide, tall, fill=False, edgecolor=f"C{number % 10}"))
    away = np.abs(masks.boxes[:, :2] + masks.boxes[:, 2:] / 2 - (height / 2, width / 2)).sum(axis=1)
    top, left, tall, wide = masks.boxes[away.argmin()].tolist()
    patch = masks.threat
    over.add_patch(Rectangle((left, top), wide, tall, facecolor="black", alpha=0.7))
    corner = left + (wide - patch.width) // 2, top + (tall - patch.height) // 2
    over.add_patch(Rectangle(corner, patch.width, patch.height, facecolor="#dc2828"))
    over.set_title("all masks; one is filled, with the patch in it (red)", fontsize=10)
    step = 1 + max(height, width) // 224  # thumbnails need few pixels
    small = canvas[::step, ::step]
    views = []
    for top, left, tall, wide in -(-masks.boxes // step):
        view = small.copy()
        view[top : top + tall, left : left + wide] = 0
        views.append(np.pad(view, ((0, 20), (0, 20), (0, 0)), constant_values=1))
    rows, columns = masks.grid or (1, len(masks))
    lines = [np.hstack(views[row * columns : (row + 1) * columns]) for row in range(rows)]
    behind.imshow(np.vstack(lines))
    behind.set_axis_off()
    behind.set_title(f"the {len(masks)} masks one by one", fontsize=10)
    figure.savefig(file, dpi=120)


def as_colors(photo: Tensor) -> np.ndarray:
    """The photo as matplotlib wants it."""
    colors: np.ndarray = photo.expand(3, -1, -1).permute(1, 2, 0).numpy()
    return colors
