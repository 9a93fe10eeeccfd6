"""One self-contained HTML page: the guarantee in words, the table, the plots, a gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
import numpy as np
from jaxtyping import Bool
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certified, predict
from patchdemux.inputs import logit
from patchdemux.masks import MaskSet
from patchdemux.report.heatmaps import as_data_uri, danger_map, probability
from patchdemux.report.plots import plot_curves
from patchdemux.report.summary import HEADINGS, Row

MAPS_PER_IMAGE = 6


@dataclass(frozen=True)
class LabelMap:
    """One label of one image: what it scores, and where a patch can turn it."""

    name: str
    true: bool
    predicted: bool
    certified: bool
    probability: float
    places: float
    overlay: str


@dataclass(frozen=True)
class GalleryImage:
    """One image with the labels worth a look."""

    name: str
    picture: str
    labels: Sequence[LabelMap]


def gallery(
    images: Tensor,
    names: Sequence[str],
    bounds: ScoreBounds,
    targets: Bool[np.ndarray, "image class"],
    class_names: Sequence[str],
    masks: MaskSet,
    threshold: float,
) -> list[GalleryImage]:
    """The images with, per label, where a patch could hide or fake it at a probability threshold.

    All true labels are shown, and the false ones that some patch can fake, most places first.
    """
    at = logit(threshold)
    safe, labels = certified(bounds, targets, at), predict(bounds, at)
    chances = probability(bounds.defended)
    shown = []
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        maps = []
        for c in np.flatnonzero(targets[i] | ~safe[i]).tolist():
            overlay, places = danger_map(bounds, masks, i, c, bool(targets[i, c]), at)
            facts = (bool(targets[i, c]), bool(labels[i, c]), bool(safe[i, c]))
            maps.append(
                LabelMap(class_names[c], *facts, chances[i, c], places, as_data_uri(overlay))
            )
        maps.sort(key=lambda m: (not m.true, -m.places))
        picture = as_data_uri(image.permute(1, 2, 0).numpy())
        shown.append(GalleryImage(name, picture, maps[:MAPS_PER_IMAGE]))
    return shown


def render_page(
    title: str,
    introduction: str,
    masks: MaskSet,
    rows: Sequence[Row],
    images: Sequence[GalleryImage],
    threshold: float,
    facts: Mapping[str, str],
) -> str:
    """The whole page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("patchdemux.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    without_attack = [row for row in rows if row.setting in ("undefended", "defended")]
    guaranteed = [row for row in rows if row not in without_attack]
    return environment.get_template("page.html").render(
        title=title,
        introduction=introduction,
        masks=masks,
        rows=rows,
        headings=HEADINGS,
        plots=[
            plot_curves(without_attack, "Without an attack"),
            plot_curves(guaranteed, "Guaranteed against every patch"),
        ],
        images=images,
        threshold=threshold,
        facts=facts,
    )
