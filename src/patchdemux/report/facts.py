"""What a run recorded of itself, in words: what it is, and what is needed to repeat it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from patchdemux import __version__
from patchdemux.footprint import Footprint
from patchdemux.margin import SAFETY
from patchdemux.masks import MaskSet
from patchdemux.report.results import Margin, margin_note
from patchdemux.runs import Run


def masks_of(run: Run) -> MaskSet | None:
    """The regions of a run as masks, proved once more to cover its threat; None if no boxes."""
    if run.boxes is None:
        return None
    rows, columns = (len(np.unique(run.boxes[:, side])) for side in (0, 1))
    grid = (rows, columns) if rows * columns == len(run.boxes) else None
    height, width = run.attributes["image_size"]
    return MaskSet((height, width), run.threat, run.boxes, grid)


def caveats(run: Run, margin: Margin) -> list[str]:
    """What limits the guarantee of a run, one sentence each."""
    recorded = run.attributes
    device = recorded["machine"]["device"]
    return [
        *patches_meant(run),
        f"Certificate and inference must be one function: precision {recorded['precision']}, "
        f"{recorded['batch_size']} views per batch on {device}. {about_margin(run, margin)}",
        images_meant(run),
        "Attackers who prefer misses or alarms are not the worst ones: their figures show what "
        "such an attacker can cause, and other attackers can cause other errors.",
    ]


def patches_meant(run: Run) -> list[str]:
    """What a patch is, or the patches are, and where they are."""
    size = "one of these shapes" if run.threat.shapes else "this size"
    if run.footprint:
        said = [on_the_photo(run.footprint)]
    else:
        said = [
            f"A patch is one rectangle of at most {size}, counted in pixels of the model's input: "
            f"after a photo was resized, not on the photo itself."
        ]
    if run.threat.count > 1:
        said.append(
            f"The patches are {run.threat.count} rectangles of at most {size}, which may overlap. "
            f"Where this page speaks of one patch and its place, all of them and their places are "
            f"meant."
        )
    return said


def on_the_photo(footprint: Footprint) -> str:
    """How a patch on the photo came to one on the model's input."""
    said = (
        f"On the photo itself, it holds for every {footprint}, as Pillow resizes. That rectangle of "
        f"the input was computed, not estimated: no pixel outside it depends on the patch."
    )
    if footprint.patch.jpeg:
        said += (
            " The photo without the patch counts as it is after the same JPEG compression, with "
            "blocks that begin at its top left corner and are rounded each by itself."
        )
    return said


def about_margin(run: Run, margin: Margin) -> str:
    """How much room the bounds have for rounding, and what that room is worth."""
    said = margin_note(run, margin)
    if margin == 0:
        return (
            f"{said} With other batches, devices or versions a score differs in its last bits, and "
            f"a bound closer to the threshold than that proves nothing."
        )
    if margin == "measured":
        seen = run.attributes["margin"]
        return (
            f"{said} It is {SAFETY} times the largest difference that other batches made in a score of "
            f"{seen['views']} masked views of {seen['images']} images: a measurement, not a proof."
        )
    return said


def images_meant(run: Run) -> str:
    """Which images the figures are about."""
    parts = ["It is about these images and says nothing certain of others."]
    if run.left_out:
        one = len(run.left_out) == 1
        parts.append(
            f"{len(run.left_out):,} {'image' if one else 'images'} could not be read; see the end. "
            f"The figures are without {'it' if one else 'them'}."
        )
    else:
        parts.append("No image was left out.")
    if not run.complete:
        parts.append(f"{len(run.done) - len(run):,} images are not evaluated yet.")
    return " ".join(parts)


def facts_of(run: Run, command: str) -> dict[str, dict[str, str]]:
    """Everything that is needed to repeat a run, in groups."""
    recorded = run.attributes
    views = recorded["views_per_image"]
    return {
        "The run": {
            "name": run.path.name,
            "images": f"{len(run):,}" + ("" if run.complete else f" of {len(run.done):,}"),
            "classes": f"{len(run.class_names):,}",
            "forward passes": f"{len(run):,} x {views:,} = {len(run) * views:,}",
            "started": time(recorded["started"]),
            "finished": time(recorded["finished"]),
            "margin when it began": readable(recorded["margin"]),
            "this page": f"patchdemux {__version__}: {command}",
        },
        "What decides its scores": {
            "fingerprint": str(recorded["fingerprint"]),
            **{name: readable(value) for name, value in run.fingerprint.items()},
        },
        "Versions": {name: readable(value) for name, value in recorded["versions"].items()},
        "Machine": {name: readable(value) for name, value in recorded["machine"].items()},
    }


def time(recorded: str | None) -> str:
    """A time as people read it."""
    if recorded is None:
        return "not yet"
    return datetime.fromisoformat(recorded).strftime("%Y-%m-%d %H:%M:%S %Z")


def readable(value: Any) -> str:
    """A recorded value as people read it."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {readable(entry)}" for name, entry in value.items())
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
