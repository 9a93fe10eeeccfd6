"""`patchdemux reproduce`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from patchdemux.cli.app import app, console
from patchdemux.cli.options import Json, progress_console
from patchdemux.report.summary import NAMES

if TYPE_CHECKING:
    from patchdemux.reproduce import Choices, Experiment, Result
    from patchdemux.reproduce.timing import Tell


@app.command()
def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="Name of the experiment; --list shows them.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The data set's folder.  [default: data/coco2014 or data/VOCdevkit]"),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="File with the weights; NAME=FILE, several times, for finetuning."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help='Another model than the paper\'s: "timm:NAME" or "package.module:function".'
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Another input size than the paper's, in pixels.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Another split than the paper's, such as val2017.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for runs, tables and figures.")] = Path(
        "reproduced"
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many images.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Views per call of the model.  [default: the fastest]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:1.  [default: a GPU if there is one]")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the equivalent commands.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeat an experiment of the paper, and compare the figures with the published ones.

    Runs resume where they were interrupted, and complete ones are reused:
    `patchdemux reproduce masks --data coco2014 --weights checkpoint.pkl --dry-run`
    """
    from patchdemux import reproduce as room

    if list_all:
        return show_experiments(room.EXPERIMENTS, as_json)
    if table is None:
        raise typer.BadParameter("say which experiment; --list shows them")
    experiment = room.experiment(table)
    choices = room.Choices(
        data=data,
        weights=named_files(experiment, weights or []),
        model=model,
        size=size,
        split=split,
        output=output,
        limit=limit,
        batch_size=batch_size,
        device=device,
    )
    if dry_run:
        commands = room.commands(experiment, choices)
        typer.echo(json.dumps(list(commands)) if as_json else "\n".join(commands))
        return None
    sys.path.append(os.getcwd())  # --model may name a module in the current folder
    try:
        with steps_bar() as tell:
            result = room.reproduce(table, choices, tell)
    except KeyboardInterrupt:
        typer.echo("stopped: finished images stay, and the same command resumes", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(result.as_json(), ensure_ascii=False))
        return None
    return show_result(result, choices)


def named_files(experiment: Experiment, weights: list[str]) -> dict[str, Path]:
    """Files by the name of their checkpoint; "" for a file without one."""
    files: dict[str, Path] = {}
    for text in weights:
        name, equals, file = text.partition("=")
        named = bool(equals) and bool(experiment.checkpoints)
        key = name if named else ""
        if key in files:
            raise ValueError(f"--weights {text}: there is a file for {key or 'the model'} already")
        files[key] = Path(file if named else text)
    return files


def show_experiments(experiments: dict[str, Experiment], as_json: bool) -> None:
    """Names and what each shows."""
    if as_json:
        typer.echo(json.dumps({name: entry.sentence for name, entry in experiments.items()}))
        return
    for name, entry in experiments.items():
        typer.echo(f"{name:<12}{entry.sentence}")


def show_result(result: Result, choices: Choices) -> None:
    """The table, what a reader must know, and where everything lies."""
    console.print(f"[bold]{result.experiment.sentence}[/bold]\n", highlight=False)
    for command in result.commands:
        console.print(command, soft_wrap=True, highlight=False, markup=False)
    console.print(comparison(result))
    for note in result.notes:
        console.print(note, highlight=False, markup=False)
    files = [choices.output / f"{result.experiment.name}.json", *result.pictures]
    for file in files:
        console.print(f"{file.resolve()}", soft_wrap=True, highlight=False, markup=False)


def comparison(result: Result) -> Table:
    """Measured and published figures side by side."""
    from patchdemux.reproduce.measure import WHOLE_CURVE

    table = Table("setting", "figure", "measured", "published", "difference")
    table.box, table.pad_edge = SIMPLE_HEAD, False
    for column in table.columns[2:]:
        column.justify = "right"
    names = {str(setting): name for setting, name in NAMES.items()}
    shown = ("", "")
    for line in result.lines:
        setting = names.get(line.setting, line.setting)
        if line.variant != shown[0]:
            table.add_row(f"[bold]{line.variant}[/bold]")
        unknown = "" if line.figure == WHOLE_CURVE else "not at hand"
        table.add_row(
            "" if (line.variant, setting) == shown else f"  {setting}",
            line.figure,
            "-" if math.isnan(line.measured) else f"{line.measured:.2f}",
            unknown if line.published is None else f"{line.published:.2f}",
            "" if line.difference is None else f"{line.difference:+.2f}",
        )
        shown = (line.variant, setting)
    return table


@contextmanager
def steps_bar() -> Iterator[Tell]:
    """A progress bar per step, where it does not disturb what is printed for scripts."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=progress_console) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield tell
