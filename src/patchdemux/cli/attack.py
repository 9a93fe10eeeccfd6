"""`patchdemux attack`: how far a patch brings the model down, and whether its certificates hold."""

from __future__ import annotations

import json as jsonlib
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from patchdemux.attack import Attack, load_patch
from patchdemux.attack.attack import Method
from patchdemux.attack.goal import OBJECTIVES
from patchdemux.attack.pictures import write_report
from patchdemux.attack.places import NAMED_PLACES, Place
from patchdemux.attack.report import AttackReport, Outcome, attack_dataset
from patchdemux.cli.app import app
from patchdemux.cli.evaluate import Data, DataOptions, Limit, duration, first_image
from patchdemux.cli.images import DEFAULT_MODEL, Threshold
from patchdemux.cli.options import (
    DefenseOptions,
    Json,
    ModelOptions,
    RuntimeOptions,
    grouped,
    notes_to,
    print_json,
    tell_defense,
)
from patchdemux.data.views import limit as first_of
from patchdemux.footprint import Footprint
from patchdemux.inputs import logit
from patchdemux.report.tables import as_json, as_text

FALSIFIED = 3
"""The exit code when an attack broke a certificate."""


@dataclass(frozen=True)
class AttackOptions:
    """How to attack."""

    objective: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(OBJECTIVES)}: true labels hidden, false ones invented, either. Once or "
            "several times; each makes a table and a plot. If not given, both."
        ),
    ] = None
    method: Annotated[
        Method, typer.Option(help="square and random need no gradients, for ONNX and the like.")
    ] = "gradient"
    place: Annotated[
        str,
        typer.Option(
            help="weakest (the regions where the bounds allow the most), every, random, or ROWxCOLUMN "
            "of the patch's top left corner."
        ),
    ] = "weakest"
    places: Annotated[int, typer.Option(help="Weakest or random places tried on each image.")] = 1
    restarts: Annotated[int, typer.Option(help="Random contents to begin with, per place.")] = 1
    steps: Annotated[int, typer.Option(help="Of each try.")] = 40
    step_size: Annotated[float, typer.Option(help="Of the first step; they shrink.")] = 0.1
    expectation: Annotated[
        int, typer.Option(help="Random masked views per image and step against the defense.")
    ] = 4
    refresh: Annotated[
        int,
        typer.Option(
            help="After so many steps, look up the views that decide, and follow their gradients "
            "too: a stronger attack, for one pass over all views each time. 0 for never."
        ),
    ] = 0
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same patches.")] = 0

    def attacks(self) -> list[Attack]:
        """One for each objective."""
        wanted = dict.fromkeys(self.objective or ("both",))
        own: dict[str, Any] = {**vars(self), "place": as_place(self.place)}
        return [Attack(**{**own, "objective": objective}) for objective in wanted]


@app.command("attack")
@grouped
def attack_data(
    data: Data,
    folder: Annotated[Path, typer.Argument(help="Folder for tables, plots and examples.")],
    model: ModelOptions,
    source: DataOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    how: AttackOptions,
    limit: Limit = None,
    threshold: Threshold = 0.5,
    universal: Annotated[
        bool, typer.Option("--universal", help="One patch for all images, saved in the folder.")
    ] = False,
    use: Annotated[
        Path | None, typer.Option(help="Put this patch (PNG) on all images, and make none.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="The labels that matter to the attacker, as cat,dog. Else all."),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Attacked images to draw.")] = 4,
    json: Json = False,
) -> None:
    """Attack a model and its defended version, and compare with what is certified.

    Attacked figures are upper bounds of the true robustness, certified ones lower bounds. Should an
    attack do what a certificate rules out, it is told loudly, and the exit code is 3.

    `patchdemux attack digits:50 attacked --masks 4 --objective hide --objective invent`

    `patchdemux attack photos/ attacked --limit 50 --masks 4 --steps 20`
    """
    logit(threshold)
    attacks = how.attacks()
    if use is not None and universal:
        raise ValueError("--use puts a patch that exists, --universal makes one: give one of them")
    notes = notes_to(json)
    if data.partition(":")[0] != "digits" or Path(data).exists():
        model = replace(model, model=model.model or DEFAULT_MODEL)
    classifier, dataset = source.open(data, model)
    if limit is not None:
        dataset = first_of(dataset, limit)
    classifier = runtime.apply(classifier, lambda: first_image(dataset), notes)
    footprint = defense.footprint(partial(Footprint.in_set, dataset=dataset))
    demux, _ = defense.defend(classifier, dataset.image_size, footprint)
    tell_defense(defense.patch, demux, notes, footprint)
    given = None if use is None else load_patch(use, demux.threat)
    started = time.perf_counter()
    report = attack_dataset(
        demux,
        dataset,
        attacks,
        threshold=threshold,
        universal=universal,
        patch=given,
        only=None if only is None else [name.strip() for name in only.split(",")],
        say=lambda text: typer.echo(text, err=True),
    )
    files = write_report(report, folder, examples)
    say = partial(notes.print, highlight=False, markup=False, soft_wrap=True)
    tables = [report.table(outcome) for outcome in report.outcomes]
    for table in tables:
        say(f"\n{as_text(table, 1)}")
    say(f"\n{duration(time.perf_counter() - started)}; written: {', '.join(map(str, files))}")
    if json:
        found = [jsonlib.loads(as_json(table)) for table in tables]
        print_json({"falsified": report.falsified, "attacks": found})
    if report.falsified:
        for outcome in report.outcomes:
            tell_falsified(report, outcome, folder)
        raise typer.Exit(FALSIFIED)


def tell_falsified(report: AttackReport, outcome: Outcome, folder: Path) -> None:
    """The broken certificates, where a person cannot miss them."""
    lines = [*outcome.fallen]
    for violation in outcome.violations:
        held = ", ".join(map(str, violation.regions)) or "none: the masks do not cover it"
        lines.append(
            f"FALSIFIED CERTIFICATE: image {report.names[violation.image]}, class "
            f"{report.class_names[violation.label]}, region {held}, patch at row {violation.row}, "
            f"column {violation.column}: the score is {violation.score:.6g}, but was proved to be "
            f"within [{violation.lower:.6g}, {violation.upper:.6g}]"
        )
    if lines:
        lines.append(f"The patches are in {(folder / 'falsified').resolve()}")
    for line in lines:
        typer.secho(line, fg=typer.colors.RED, err=True)


def as_place(text: str) -> Place:
    """A place by name, or a row and a column."""
    if found := re.fullmatch(r"(\d+)x(\d+)", text):
        return int(found[1]), int(found[2])
    for name in NAMED_PLACES:
        if text == name:
            return name
    raise ValueError(
        f"--place must be {', '.join(NAMED_PLACES)} or ROWxCOLUMN, as 20x35, but got {text!r}"
    )
