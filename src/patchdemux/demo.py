"""The demo: digit scenes, certified and measured from end to end, in about a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from patchdemux import __version__
from patchdemux.classifier import Classifier
from patchdemux.data.digits import digit_scenes
from patchdemux.defenses import DoubleMasking
from patchdemux.demux import PatchDemux
from patchdemux.engine import Progress
from patchdemux.margin import measure_margin
from patchdemux.masks import MaskSet
from patchdemux.models.digit_net import digit_net
from patchdemux.report.gallery import gallery
from patchdemux.report.page import Guarantee, Page, Pictured, render_page
from patchdemux.report.plots import plots_of
from patchdemux.report.summary import Row, curve_table, summarize
from patchdemux.threat import PatchThreat

GALLERY = 12
INTRODUCTION = (
    "Scenes of real handwritten digits: one to four different digits in a scene, each of them once "
    "or several times, as things in photographs come alone or in groups. The task is to name all "
    "that appear. A small network reads them, defended by double masking. None of these digits was "
    "seen in training."
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo measured, and where its page is."""

    rows: list[Row]
    masks: MaskSet
    page: Path
    views: int
    seconds: float


def run_demo(
    output: Path,
    *,
    scenes: int = 200,
    patch: float = 0.02,
    masks: tuple[int, int] = (6, 6),
    threshold: float = 0.5,
    progress: Progress | None = None,
) -> DemoResult:
    """Certify test scenes against a patch of a share of the image, and write a page about it."""
    output.mkdir(parents=True, exist_ok=True)
    data = digit_scenes(scenes, split="test")
    height, width = data.images.shape[-2:]
    size = (int(height), int(width))
    threat, defense = PatchThreat.from_area(patch, size), DoubleMasking(masks)
    classifier = Classifier(digit_net(), class_names=data.class_names)
    demux = PatchDemux(classifier, threat, defense, image_size=size, progress=progress)
    mask_set = defense.mask_set(size, threat)
    started = time.perf_counter()
    bounds = demux.bounds(data.images)
    seconds = time.perf_counter() - started
    margin = measure_margin(demux, data.images)
    bounds = bounds.widened(margin.value)
    moved = f"Every bound is moved outward by the margin: {margin}."
    targets = data.targets.astype(bool)
    rows = summarize(bounds, targets)
    views = len(mask_set.unions()) + 1
    facts = {
        "command": f"patchdemux demo --scenes {scenes} --patch {patch} --masks {masks[0]}",
        "scenes": f"{scenes} of the test split, seed 0, {size[0]} x {size[1]} pixels",
        "defense": str(defense),
        "forward passes": f"{scenes} x {views} in {seconds:.1f} s",
        "versions": f"patchdemux {__version__}, torch {torch.__version__}",
    }
    first = slice(0, GALLERY)
    shown = gallery(
        list(data.images[first]),
        [f"scene {i}" for i in range(scenes)[first]],
        bounds[first],
        targets[first],
        data.class_names,
        mask_set,
        threshold,
    )
    page = output / "index.html"
    title = "Digit scenes, defended against a patch"
    html = render_page(
        Page(
            title=title,
            introduction=[INTRODUCTION],
            results=curve_table(rows, title),
            plots=plots_of(rows),
            guarantee=Guarantee(threat, size, scenes, str(mask_set), [moved]),
            gallery=[Pictured("", shown)],
            threshold=threshold,
            facts={"": facts},
        )
    )
    page.write_text(html, encoding="utf-8")
    return DemoResult(rows, mask_set, page, views, seconds)
