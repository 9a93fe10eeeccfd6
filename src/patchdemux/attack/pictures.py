"""The files of a report: tables, plots, attacked images, and the patches that broke a certificate."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from patchdemux.attack.attack import Attacked
from patchdemux.attack.report import ORDER, TITLES, WORDS, AttackReport, Outcome
from patchdemux.attack.universal import save_patch
from patchdemux.certify import exceeds
from patchdemux.inputs import logit
from patchdemux.report.drawings import as_colors
from patchdemux.report.plots import STYLES, Line, draw
from patchdemux.report.tables import as_json, as_text

STYLE = {
    **STYLES,
    "undefended-attacked": ("#8a8f98", "--"),
    "defended-attacked": ("#2f6fde", "--"),
}


def write_report(report: AttackReport, folder: Path, examples: int = 4) -> list[Path]:
    """Write everything into the folder; the files that a reader begins with are returned."""
    folder.mkdir(parents=True, exist_ok=True)
    first = []
    for outcome in report.outcomes:
        name = outcome.how.objective
        table = report.table(outcome)
        (folder / f"{name}.txt").write_text(as_text(table, 1) + "\n", encoding="utf-8")
        (folder / f"{name}.json").write_text(as_json(table) + "\n", encoding="utf-8")
        plot = folder / f"{name}.png"
        draw_curves(outcome, plot)
        first += [folder / f"{name}.txt", folder / f"{name}.json", plot]
        if report.about["universal"]:
            for victim, attacked in victims(outcome):
                save_patch(folder / f"{name}-universal-{victim}.png", attacked.patches[0])
        for image in worst(outcome)[:examples]:
            (folder / "examples").mkdir(exist_ok=True)
            stem = f"{folder / 'examples' / name}-{flat(report.names[image])}"
            draw_example(report, outcome, image, Path(f"{stem}.png"))
            for victim, attacked in victims(outcome):
                save_patch(f"{stem}-{victim}.png", attacked.patches[image])
        write_falsified(report, outcome, folder / "falsified")
    return first


def write_falsified(report: AttackReport, outcome: Outcome, folder: Path) -> list[Path]:
    """The patches that broke a certificate, each once; the file's name says the image and the place."""
    files: dict[Path, Tensor] = {}
    for violation, patch in zip(outcome.violations, outcome.defended.broken, strict=True):
        stem = flat(report.names[violation.image])
        place = f"row{violation.row}-column{violation.column}"
        files.setdefault(folder / f"{outcome.how.objective}-{stem}-{place}.png", patch)
    for file, patch in files.items():
        folder.mkdir(exist_ok=True)
        save_patch(file, patch)
    return list(files)


def flat(name: str) -> str:
    """An image's name as a part of a file's."""
    return name.replace("/", "_")


def victims(outcome: Outcome) -> list[tuple[str, Attacked]]:
    return [("undefended", outcome.undefended), ("defended", outcome.defended)]


def worst(outcome: Outcome) -> list[int]:
    """The images in falling order of what the attacks did to them."""
    errors = outcome.undefended.errors + outcome.defended.errors
    return [int(image) for image in np.argsort(-errors, kind="stable")]


def draw_curves(outcome: Outcome, file: Path) -> None:
    """Precision against recall: measured without and under attack, and proved."""
    lines = [Line(TITLES[s], outcome.curve(s), *STYLE[s]) for s in ORDER]
    figure = Figure(figsize=(7, 5.4), layout="constrained")
    draw(figure.subplots(), lines, f"An attack {WORDS[outcome.how.objective]}")
    figure.savefig(file, dpi=110)


def draw_example(report: AttackReport, outcome: Outcome, image: int, file: Path) -> None:
    """The clean image and both attacked ones, with what each classifier makes of it."""
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    panels = figure.subplots(1, 3)
    truth = outcome.targets[image]
    bounds = outcome.bounds
    clean = [("undefended", bounds.clean), ("defended", bounds.defended)]
    words = [words_of(report, outcome, image, n, s) for n, s in clean if s is not None]
    names = ", ".join(report.class_names[c] for c in np.flatnonzero(truth).tolist()) or "nothing"
    panels[0].imshow(as_colors(report.images[image].cpu()))
    panels[0].set_title("\n".join([fill(f"truth: {names}", 44), *words]), fontsize=8, loc="left")
    for axes, (name, attacked) in zip(panels[1:], victims(outcome), strict=True):
        axes.imshow(as_colors(attacked.images[image].cpu()))
        top, left = attacked.places[image].tolist()
        height, width = attacked.patches.shape[-2:]
        edge = Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor="red")
        axes.add_patch(edge)
        text = words_of(report, outcome, image, f"{name}, attacked", attacked.scores)
        axes.set_title(text, fontsize=8, loc="left")
    for axes in panels:
        axes.set_axis_off()
    figure.savefig(file, dpi=110)


def words_of(
    report: AttackReport,
    outcome: Outcome,
    image: int,
    who: str,
    scores: Float[np.ndarray, "image class"],
) -> str:
    """The labels of an image that a classifier misses and invents."""
    labels, truth = exceeds(scores[image], logit(outcome.threshold)), outcome.targets[image]
    found = []
    for what, wrong in (("misses", truth & ~labels), ("invents", labels & ~truth)):
        names = [report.class_names[c] for c in np.flatnonzero(wrong).tolist()]
        found += [f"{what} {', '.join(names)}"] if names else []
    return fill(f"{who}: {'; '.join(found) or 'all labels right'}", 44)
