"""One self-contained HTML page: the guarantee in words, tables, plots, and a gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from patchdemux.report.classes import ClassRow
from patchdemux.report.gallery import GalleryImage
from patchdemux.report.summary import MEANINGS, NAMES
from patchdemux.report.tables import Table
from patchdemux.threat import PatchThreat

COLUMN = 20  # classes in one column of the class table, before a second one begins

Facts = Mapping[str, str]


@dataclass(frozen=True)
class Guarantee:
    """For what exactly the certified figures hold.

    Attributes:
        threat: the patch.
        image_size: height and width of the model's input.
        images: number of images that the figures are about.
        masks: the masks or regions, in words.
        caveats: what limits it, one sentence each.
    """

    threat: PatchThreat
    image_size: tuple[int, int]
    images: int
    masks: str
    caveats: Sequence[str] = ()


@dataclass(frozen=True)
class KeyFigure:
    """One number that a hurried reader takes along."""

    share: float
    meaning: str
    guaranteed: bool = False


@dataclass(frozen=True)
class Classes:
    """The table of classes, with the mean over those that have a true label."""

    rows: Sequence[ClassRow]
    mean: ClassRow

    @property
    def columns(self) -> list[Sequence[ClassRow]]:
        """One part of the table, or two side by side where there are many classes."""
        half = len(self.rows) if len(self.rows) <= COLUMN else -(-len(self.rows) // 2)
        return [self.rows[start : start + half] for start in range(0, len(self.rows), half)]

    @property
    def unseen(self) -> list[str]:
        """The classes without a true label."""
        return [row.name for row in self.rows if not row.labels]


@dataclass(frozen=True)
class Pictured:
    """A part of the gallery."""

    title: str
    images: Sequence[GalleryImage]
    words: str = ""


@dataclass(frozen=True)
class Page:
    """Everything on a page; what is empty is not shown.

    Attributes:
        title: of the page.
        introduction: paragraphs.
        results: precision and recall.
        plots: SVG elements.
        guarantee: for what the certified figures hold.
        figures: the most important numbers.
        warnings: what a reader must know first.
        classes: the table of classes.
        gallery: images, drawn at the probability threshold `threshold`.
        facts: what is needed to repeat this, in groups, under the title `facts_title`.
        left_out: name and reason of images that are in no figure.
    """

    title: str
    introduction: Sequence[str]
    results: Table
    plots: Sequence[str]
    guarantee: Guarantee | None = None
    figures: Sequence[KeyFigure] = ()
    warnings: Sequence[str] = ()
    classes: Classes | None = None
    gallery: Sequence[Pictured] = ()
    gallery_words: Sequence[str] = ()
    threshold: float = 0.5
    facts: Mapping[str, Facts] | None = None
    facts_title: str = "To repeat this"
    left_out: Sequence[Mapping[str, str]] = ()


def render_page(page: Page) -> str:
    """The whole page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("patchdemux.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    measured = dict.fromkeys(row["setting"] for row in page.results.rows)
    meanings = {NAMES[setting]: MEANINGS[setting] for setting in NAMES if setting in measured}
    return environment.get_template("page.html").render(page=page, meanings=meanings)
