"""A data set under attack: one table and one plot of what is measured and what is proved.

The certificate is a lower bound of the true robustness, and an attack is an upper one. What is between
them is not known. If the attack falls below the certificate, the certificate is false.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from patchdemux.attack.attack import Attack, Attacked, attack
from patchdemux.attack.check import Violation
from patchdemux.attack.goal import Objective
from patchdemux.attack.universal import put, universal_patch
from patchdemux.attack.victims import BATCH
from patchdemux.batch_size import BatchSize
from patchdemux.bounds import ScoreBounds
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.inputs import logit
from patchdemux.margin import Margin, measure_margin
from patchdemux.metrics.curves import Curve, Setting, operating_point, precision_recall_curve
from patchdemux.report.summary import NAMES
from patchdemux.report.tables import Cell, Column, Table
from patchdemux.runs.images import read_chunk

Measured = Setting | Literal["undefended-attacked", "defended-attacked"]
ORDER: tuple[Measured, ...] = (
    "undefended",
    "undefended-attacked",
    "defended",
    "defended-attacked",
    "exact",
    "location",
    "certified",
)
TITLES: dict[str, str] = {
    "undefended-attacked": "Undefended, ATTACKED",
    "defended-attacked": "Defended, ATTACKED",
    **{str(setting): name for setting, name in NAMES.items()},
}
WORDS: dict[Objective, str] = {
    "hide": "to hide true labels",
    "invent": "to invent false labels",
    "both": "to hide and to invent labels",
    "errors": "to cause the most wrong labels",
}
COLUMNS = (
    Column("setting", figure=False, for_people=False),
    Column("name", "setting", figure=False),
    Column("precision", "precision", "at the threshold"),
    Column("recall", "recall", "at the threshold"),
    Column("paper_average_precision", "AP paper", "from 25% recall on"),
    Column("average_precision", "AP", "the usual one"),
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One attack on the model alone and on the defended one, and what was proved.

    Attributes:
        how: the attack.
        undefended, defended: what it came to.
        threshold: the probability it was aimed at.
        bounds: of the clean images, widened by the margin.
        targets: the true labels.
    """

    how: Attack
    undefended: Attacked
    defended: Attacked
    threshold: float
    bounds: ScoreBounds
    targets: Bool[np.ndarray, "image class"]

    def point(self, setting: Measured) -> tuple[float, float]:
        """Precision and recall at the threshold."""
        bounds, plain = self._of(setting)
        return operating_point(bounds, self.targets, plain, logit(self.threshold))

    def curve(self, setting: Measured) -> Curve:
        """Precision and recall at every threshold."""
        bounds, plain = self._of(setting)
        return precision_recall_curve(bounds, self.targets, plain)

    def _of(self, setting: Measured) -> tuple[ScoreBounds, Setting]:
        """Where the setting is read from; attacked scores are plain scores of other images."""
        if setting == "undefended-attacked":
            return plain_scores(self.undefended.scores), "defended"
        if setting == "defended-attacked":
            return plain_scores(self.defended.scores), "defended"
        return self.bounds, setting

    @property
    def rows(self) -> list[dict[str, Cell]]:
        """The settings in order, each with its figures."""
        rows: list[dict[str, Cell]] = []
        for setting in ORDER:
            precision, recall = self.point(setting)
            curve = self.curve(setting)
            figures = precision, recall, curve.paper_average_precision(), curve.average_precision()
            keys = [column.key for column in COLUMNS[2:]]
            cells: dict[str, Cell] = dict(zip(keys, figures, strict=True))
            rows.append({"setting": setting, "name": TITLES[setting], **cells})
        return rows

    @property
    def unknown(self) -> str:
        """What lies between attack and proof, in words."""
        proved, found = self.point("exact"), self.point("defended-attacked")
        of = [
            f"{what} at least {low:.1%} (exact worst case, proved) and at most {high:.1%} (this attack)"
            for what, low, high in zip(("precision", "recall"), proved, found, strict=True)
        ]
        return (
            f"What is not known: under the worst patch, the defended model has {' and '.join(of)}."
        )

    @property
    def violations(self) -> Sequence[Violation]:
        return self.defended.violations

    @property
    def fallen(self) -> list[str]:
        """Figures of the attack that are below the proved ones, in words; none, if these are true."""
        proved, found = self.point("exact"), self.point("defended-attacked")
        return [
            f"The attacked {what} is {high:.3%}, but at least {low:.3%} was proved: a certificate is "
            f"false."
            for what, low, high in zip(("precision", "recall"), proved, found, strict=True)
            if high < low
        ]


@dataclass(frozen=True, eq=False)
class AttackReport:
    """All attacks on some images of a data set."""

    images: Tensor
    names: Sequence[str]
    class_names: Sequence[str]
    margin: Margin
    outcomes: Sequence[Outcome]
    about: dict[str, Any]

    @property
    def falsified(self) -> bool:
        """Whether a certificate was shown to be false."""
        return any(outcome.violations or outcome.fallen for outcome in self.outcomes)

    def table(self, outcome: Outcome) -> Table:
        """One attack's table, and all else that is known of it for programs."""
        wrong = [
            {
                **asdict(violation),
                "image": self.names[violation.image],
                "label": self.class_names[violation.label],
            }
            for violation in outcome.violations
        ]
        images = [
            {
                "name": name,
                **self._of_image(i, "undefended", outcome.undefended),
                **self._of_image(i, "defended", outcome.defended),
            }
            for i, name in enumerate(self.names)
        ]
        about = {
            **self.about,
            "attack": asdict(outcome.how),
            "threshold": outcome.threshold,
            "margin": self.margin.value,
            "falsified": bool(outcome.violations or outcome.fallen),
            "violations": wrong,
            "images": images,
        }
        caption = (
            f"An attack {WORDS[outcome.how.objective]} ({outcome.how.method}) on "
            f"{len(self.names)} images, at threshold {outcome.threshold:g}"
        )
        notes = [*outcome.fallen, outcome.unknown, f"The margin of all bounds: {self.margin}."]
        return Table(caption, COLUMNS, outcome.rows, notes, about)

    def _of_image(self, image: int, victim: str, attacked: Attacked) -> dict[str, Any]:
        row, column = attacked.places[image].tolist()
        return {f"{victim}_errors": int(attacked.errors[image]), f"{victim}_place": [row, column]}


def attack_dataset(
    demux: PatchDemux,
    dataset: ImageSet,
    attacks: Sequence[Attack],
    *,
    threshold: float = 0.5,
    universal: bool = False,
    patch: Tensor | None = None,
    only: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> AttackReport:
    """Attack all images of a data set, undefended and defended, and compare with what is proved.

    Args:
        demux: the defended classifier.
        dataset: its images are all held in memory at once.
        attacks: each makes a table and a plot.
        threshold: the probability above which a label is predicted.
        universal: make one patch for all images, instead of one for each.
        patch: put this one on all images, and make none.
        only: the classes that matter to the attacker; None for all.
        say: is told what begins.
    """
    demux = steady(demux)
    labels = None if only is None else labels_named(only, dataset)
    images = read_chunk(dataset, range(len(dataset)))
    targets = dataset.targets.astype(bool)
    margin = measure_margin(demux, images)
    say(f"certifying {len(images)} images")
    bounds = demux.bounds(images).widened(margin.value)
    about = {
        "patch": asdict(demux.threat),
        "defense": str(demux.defense),
        "universal": universal,
        "only": None if only is None else list(only),
    }
    outcomes = []
    for how in attacks:
        found: list[Attacked] = []
        for defended in (False, True):
            say(f"attacking the {'defended' if defended else 'undefended'} model: {how.objective}")
            own: dict[str, Any] = {"defended": defended, "threshold": threshold, "labels": labels}
            if patch is not None or universal:
                content = patch
                if content is None:
                    content = universal_patch(demux, images, targets, how, **own)
                found.append(put(demux, images, targets, content, how, bounds=bounds, **own))
            else:
                start = found[0] if defended and how.method == "gradient" else None
                found.append(attack(demux, images, targets, how, bounds=bounds, start=start, **own))
        outcomes.append(Outcome(how, found[0], found[1], threshold, bounds, targets))
    return AttackReport(images, dataset.names, dataset.class_names, margin, outcomes, about)


def labels_named(only: Sequence[str], dataset: ImageSet) -> Bool[np.ndarray, "image class"]:
    """True for these classes, in every image."""
    for name in only:
        if name not in dataset.class_names:
            raise ValueError(f"there is no class {name!r}; there are {list(dataset.class_names)}")
    return np.tile(np.isin(dataset.class_names, list(only)), (len(dataset), 1))


def steady(demux: PatchDemux) -> PatchDemux:
    """The same, with batches of one size: what does not show the patch then scores just the same."""
    fixed = copy.copy(demux)
    fixed.engine = copy.copy(demux.engine)
    fixed.engine.batch = BatchSize(demux.engine.batch.fixed or BATCH)
    return fixed


def plain_scores(scores: Float[np.ndarray, "image class"]) -> ScoreBounds:
    """Scores of attacked images, of which nothing is proved."""
    none = np.full((len(scores), 1, scores.shape[1]), np.inf, scores.dtype)
    return ScoreBounds(None, scores, -none, none)
