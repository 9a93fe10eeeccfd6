"""From a run to a page about it."""

from __future__ import annotations

from collections.abc import Sequence

from patchdemux.bounds import ScoreBounds
from patchdemux.data.base import ImageSet
from patchdemux.inputs import logit
from patchdemux.masks import MaskSet
from patchdemux.metrics import SETTINGS
from patchdemux.metrics.curves import Setting, operating_point
from patchdemux.report.classes import means, per_class
from patchdemux.report.facts import caveats, facts_of, masks_of
from patchdemux.report.gallery import gallery, pick
from patchdemux.report.page import Classes, Guarantee, KeyFigure, Page, Pictured
from patchdemux.report.pictures import Pictures, pictures_of
from patchdemux.report.plots import plots_of
from patchdemux.report.results import Margin, about, caption, gaps
from patchdemux.report.robustness import DEFINITION, extremes, ranking
from patchdemux.report.summary import Row, curve_table, summarize
from patchdemux.runs import Run

GALLERY = 6  # images of each kind


def run_page(
    run: Run,
    dataset: ImageSet | None = None,
    *,
    threshold: float = 0.5,
    images: int = GALLERY,
    margin: Margin = "measured",
    command: str = "patchdemux report",
) -> Page:
    """The page about a run; `render_page` makes it HTML.

    Args:
        run: what was measured.
        dataset: its data set, for the pictures; digit scenes are made again without it.
        threshold: probability above which a label is predicted, for the gallery and the figures in
            words. Tables and curves go through every threshold.
        images: the most images in each half of the gallery, most and least robust; 0 for none.
        margin: by which every bound is moved outward; see `Run.bounds`.
        command: how the page was made, for the record.
    """
    if images < 0:
        raise ValueError(f"images must be at least 0, but got {images}")
    at = logit(threshold)
    pictures = pictures_of(run, dataset)
    masks = masks_of(run)
    bounds = run.bounds(margin)
    rows = summarize(bounds, run.targets, SETTINGS)
    by_class = per_class(bounds, run.targets, run.class_names)
    height, width = run.attributes["image_size"]
    regions = f"{bounds.lower.shape[1]:,} regions, as the defense recorded them"
    halves = galleries(run, bounds, masks, pictures, threshold, images)
    return Page(
        title=f"{run.path.name}: what a patch can do",
        introduction=introduction(run, bounds, at, threshold),
        results=curve_table(rows, caption(run), gaps(run), **about(run, margin)),
        plots=plots_of(rows),
        guarantee=Guarantee(
            run.threat, (height, width), len(run), str(masks or regions), caveats(run, margin)
        ),
        figures=key_figures(rows, run.threat.count),
        warnings=[] if run.complete else gaps(run)[:1],
        classes=Classes(by_class, means(by_class)),
        gallery=halves,
        gallery_words=[text for text in (DEFINITION, pictures.note) if text],
        threshold=threshold,
        facts=facts_of(run, command),
        left_out=run.left_out,
    )


def introduction(run: Run, bounds: ScoreBounds, at: float, threshold: float) -> list[str]:
    """The run in words, and what happens at one threshold."""
    labels = int(run.targets.sum())
    point = {
        setting: [
            f"{100 * share:.1f}%" for share in operating_point(bounds, run.targets, setting, at)
        ]
        for setting in ("undefended", "defended", "location", "exact")
    }

    def of(setting: str) -> str:
        precision, recall = point[setting]
        return f"{recall} of the true labels at {precision} precision"

    return [
        f"{len(run):,} images with {labels:,} true labels of {len(run.class_names):,} classes, read "
        f"by {run.attributes['model']} and defended by {run.defense} against one {run.against}.",
        f"At threshold {threshold} and without an attack, the classifier finds {of('undefended')}; "
        f"defended, it finds {of('defended')}. Whatever the patch shows and wherever it is, the "
        f"defended one finds no less than {of('location')} (Algorithm 3); the exact worst case, "
        f"lowest recall and lowest precision, is {of('exact')}.",
    ]


def key_figures(rows: Sequence[Row], patches: int = 1) -> list[KeyFigure]:
    """The paper's average precision of the most important settings."""
    attack = "one patch" if patches == 1 else f"{patches} patches"
    words: dict[Setting, str] = {
        "undefended": "average precision, undefended, no attack",
        "defended": "defended, no attack",
        "certified": "guaranteed, one attacker per label (Algorithm 2)",
        "location": f"guaranteed against {attack} (Algorithm 3)",
        "exact": f"exact worst case of {attack}",
    }
    return [
        KeyFigure(
            row.curve.paper_average_precision(),
            words[row.setting],
            row.setting not in ("undefended", "defended"),
        )
        for row in rows
        if row.setting in words
    ]


def galleries(
    run: Run,
    bounds: ScoreBounds,
    masks: MaskSet | None,
    pictures: Pictures,
    threshold: float,
    count: int,
) -> list[Pictured]:
    """The most and the least robust images."""
    ranked = ranking(bounds, run.targets, logit(threshold))
    halves = []
    for title, chosen in zip(("Most robust", "Least robust"), extremes(ranked, count), strict=True):
        if len(chosen):
            names = [run.names[image] for image in chosen]
            shown = gallery(
                [pictures[name] for name in names],
                names,
                pick(bounds, chosen),
                run.targets[chosen],
                run.class_names,
                masks,
                threshold,
            )
            halves.append(Pictured(title, shown))
    return halves
