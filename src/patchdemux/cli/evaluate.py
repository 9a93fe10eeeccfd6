"""`patchdemux evaluate` and `patchdemux plan`: whole data sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from patchdemux import runs
from patchdemux.classifier import Classifier
from patchdemux.cli.app import app
from patchdemux.cli.options import (
    AUTO,
    DefenseOptions,
    Json,
    ModelOptions,
    RuntimeOptions,
    Yes,
    agree,
    grouped,
    many_views,
    notes_to,
    print_json,
    progress_console,
    tell_defense,
)
from patchdemux.data.base import ImageError, ImageSet
from patchdemux.data.open import open_dataset
from patchdemux.footprint import Footprint
from patchdemux.models.loading import FORMS, load_model
from patchdemux.report.results import run_table
from patchdemux.report.tables import as_json, as_text
from patchdemux.runs.images import OnError
from patchdemux.runs.progress import Report, Status

LOG_EVERY = 60.0
"""Seconds between lines of progress, where there is no terminal to draw a bar on."""

Data = Annotated[
    str,
    typer.Argument(
        help="digits or digits:200; a folder or zip of photos with labels.csv; a COCO folder; a "
        "VOCdevkit."
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Views per call of the model. Else the fastest is found.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many images.")]


@dataclass(frozen=True)
class DataOptions:
    """What belongs to a data set beside its place."""

    annotations: Annotated[
        Path | None, typer.Option(help="A COCO file instances_*.json that lies elsewhere.")
    ] = None
    labels: Annotated[
        Path | None, typer.Option(help="A CSV with the labels that lies elsewhere.")
    ] = None
    year: Annotated[str | None, typer.Option(help="Of PASCAL VOC, such as 2007.")] = None
    split: Annotated[
        str | None, typer.Option(help="Such as val2014 (COCO), test (PASCAL VOC, digits).")
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Between the labels of the CSV, where it is none of | ; ,")
    ] = None
    difficult: Annotated[
        bool | None,
        typer.Option(
            "--difficult/--no-difficult",
            help="Objects marked as difficult in PASCAL VOC: count them as the paper, or not.",
        ),
    ] = None
    keep_empty: Annotated[
        bool | None,
        typer.Option(
            "--keep-empty/--drop-empty",
            help="Photos without objects: COCO and VOC drop them as the paper, a CSV keeps them.",
        ),
    ] = None

    def open(
        self, data: str, model: ModelOptions, outputs: tuple[str, ...] | None = None
    ) -> tuple[Classifier, ImageSet]:
        """The data set, and the model that it is for.

        A model that is made by name gets the classes of the data, or the `outputs`.
        """
        digits = data.partition(":")[0] == "digits" and not Path(data).exists()
        if not (digits or Path(data).exists()):
            raise FileNotFoundError(
                f"there is no folder or zip {data}, and it is not 'digits' either"
            )
        if model.model is None and not digits:
            raise ValueError(f"say with --model which model to evaluate on {data}: {FORMS}")
        model = replace(model, model=model.model or "digits")
        if not model.is_made_to_size:
            classifier = model.open()
            return classifier, self._read(data, model, classifier)
        # It gets an output per class, so the data come first; and before them, how large it is.
        dataset = self._read(data, model, load_model(str(model.model)))
        return model.open(outputs or dataset.class_names), dataset

    def _read(self, data: str, model: ModelOptions, classifier: Classifier) -> ImageSet:
        preprocessing = model.preprocessing(classifier)
        return open_dataset(data, preprocessing, classes=model.class_names, **vars(self))


@app.command()
@grouped
def evaluate(
    data: Data,
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    model: ModelOptions,
    source: DataOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    batch_size: BatchSize = None,
    limit: Limit = None,
    on_error: Annotated[
        OnError, typer.Option(help="At a photo that cannot be read: stop, or skip and report it.")
    ] = "stop",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Evaluate a data set into a run, from which tables, curves and certificates are read.

    Kill it at any moment: the same command resumes. `patchdemux plan` tells before what it costs.

    `patchdemux evaluate digits:50 runs/digits --masks 3 --patch 2%`

    `patchdemux evaluate photos/ runs/mine --model my_models:street --patch 32px`

    `patchdemux evaluate photos/ runs/street --model my_models:street --patch 64px@source`

    `patchdemux evaluate digits:50 runs/two --patches 2 --masks 3 --patch 1%`
    """
    classifier, dataset = source.open(data, model)
    notes = notes_to(json)
    classifier = as_begun(runtime, run).apply(classifier, lambda: first_image(dataset), notes)
    footprint = defense.footprint(partial(Footprint.in_set, dataset=dataset, limit=limit))
    demux, _ = defense.defend(classifier, dataset.image_size, footprint)
    tell_defense(defense.patch, demux, notes, footprint)
    agree(demux, min(len(dataset), limit or len(dataset)), yes)
    started = time.perf_counter()
    try:
        with watched(notes) as progress:
            finished = runs.evaluate(
                demux,
                dataset,
                run,
                batch_size=batch_size,
                model_id=model.model or "digits",
                on_error=on_error,
                limit=limit,
                footprint=footprint,
                progress=progress,
            )
    except KeyboardInterrupt:
        typer.echo("stopped: what is stored stays, and the same command resumes", err=True)
        raise typer.Exit(130) from None
    say = partial(notes.print, highlight=False, markup=False, soft_wrap=True)
    for image in finished.left_out:
        say(f"left out: {image['name']}: {image['reason']}")
    took = duration(time.perf_counter() - started)
    say(f"the run is at {run.resolve()}: {len(finished):,} images, {took}\n")
    table = run_table(finished)
    if json:
        more = {"path": str(run.resolve()), "left_out_images": list(finished.left_out)}
        typer.echo(as_json(replace(table, about={**table.about, **more})))
    else:
        say(as_text(table))


@app.command()
@grouped
def plan(
    data: Data,
    model: ModelOptions,
    source: DataOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    batch_size: BatchSize = None,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """Tell what evaluating a data set will cost, from a short timing on this machine.

    `patchdemux plan digits:500 --masks 6`

    `patchdemux plan coco/ --split val2014 --model timm:resnet50 --size 448`
    """
    classifier, dataset = source.open(data, model)
    notes = notes_to(json)
    classifier = runtime.apply(classifier, lambda: first_image(dataset), notes)
    footprint = defense.footprint(partial(Footprint.in_set, dataset=dataset, limit=limit))
    demux, _ = defense.defend(classifier, dataset.image_size, footprint)
    tell_defense(defense.patch, demux, notes, footprint)
    cost = runs.plan(demux, dataset, batch_size=batch_size, limit=limit)
    if many := many_views(demux, cost.images):
        notes.print(f"warning: {many}; evaluate wants to hear --yes", soft_wrap=True)
    if json:
        print_json(asdict(cost))
        return
    notes.print(
        f"{cost.views_per_image:,} views per image: {cost.views:,} forward passes for "
        f"{cost.images:,} images\n"
        f"{duration(cost.seconds)}, at {cost.views / cost.seconds:,.0f} forward passes/s in batches "
        f"of {cost.batch_size}\n"
        f"{cost.disk_bytes / 1e6:,.1f} MB on disk at most",
        highlight=False,
        soft_wrap=True,
    )


def as_begun(options: RuntimeOptions, run: Path) -> RuntimeOptions:
    """Instead of `auto`, what an earlier process chose for this run: another would not resume it."""
    if options.runtime != AUTO or not (run.is_dir() and any(run.iterdir())):
        return options
    begun = runs.Run.open(run, allow_incomplete=True).attributes["runtime"]
    return RuntimeOptions(begun["name"], begun["precision"])


def first_image(dataset: ImageSet) -> Tensor:
    """The first image that can be read; the others are named when the run begins."""
    for i in range(len(dataset)):
        with suppress(ImageError):
            return dataset[i]
    raise ImageError("none of the images can be read")


@contextmanager
def watched(notes: Console) -> Iterator[Report]:
    """A progress bar of a run, or lines for a log; and a note where an earlier run goes on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    terminal = progress_console.is_terminal
    speed = TextColumn("{task.fields[speed]}")
    with Progress(*columns, speed, console=progress_console, disable=not terminal) as bar:
        task = bar.add_task("", total=None, speed="")
        stage, told = "", time.monotonic()

        def report(status: Status) -> None:
            nonlocal stage, told
            if status.stage != stage and status.views:
                tell_resumed(status, notes)
            stage = status.stage
            done = int(status.images * status.views_done / status.views) if status.views else 0
            done = max(done, status.images_done)
            speed = speed_of(status)
            bar.update(
                task, description=stage, completed=done, total=status.images, speed=f"images{speed}"
            )
            if not terminal and time.monotonic() - told > LOG_EVERY:
                told = time.monotonic()
                typer.echo(f"{stage}: {done:,} of {status.images:,} images{speed}", err=True)

        yield report


def tell_resumed(status: Status, notes: Console) -> None:
    """Whether this goes on where an earlier process ended."""
    if status.images_done == status.images:
        notes.print(f"nothing to do: all {status.images:,} images are done", highlight=False)
    elif status.images_done:
        notes.print(
            f"resuming: {status.images_done:,} of {status.images:,} images are done already",
            highlight=False,
        )


def speed_of(status: Status) -> str:
    """Images and forward passes per second, and the time left, as far as they are known."""
    if status.seconds_left is None:
        return ""
    return (
        f", {status.images_per_second:,.2f} images/s, {status.views_per_second:,.0f} forward "
        f"passes/s, {duration(status.seconds_left)} left"
    )


def duration(seconds: float) -> str:
    """A time as people say it."""
    for unit, length in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
