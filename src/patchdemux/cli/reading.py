"""`patchdemux table`, `patchdemux report` and `patchdemux compare`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from patchdemux.cli.app import app
from patchdemux.cli.options import progress_console
from patchdemux.metrics import SETTINGS
from patchdemux.report.results import Margin, Protocol, run_table
from patchdemux.report.summary import TABLE_SETTINGS
from patchdemux.report.tables import Format, in_format
from patchdemux.runs import Run

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")]
FormatOption = Annotated[
    Format, typer.Option("--format", help="CSV and JSON hold all there is, not rounded.")
]
Digits = Annotated[
    int | None,
    typer.Option(min=0, max=9, help="Digits after the point of percentages; 3 if not given."),
]
Attackers = Annotated[
    bool, typer.Option("--all", help="Also the attackers who prefer misses, or false alarms.")
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        min=0,
        help="Move every bound outward by so much; if not given, by the run's measured margin.",
    ),
]
AllowIncomplete = Annotated[
    bool, typer.Option("--allow-incomplete", help="Take the finished images of an unfinished run.")
]


@app.command()
def table(
    run: RunPath,
    format: FormatOption = "text",
    protocol: Annotated[
        Protocol,
        typer.Option(help="Every threshold (curve), or the published lists and bisection (paper)."),
    ] = "curve",
    attackers: Attackers = False,
    digits: Digits = None,
    margin: MarginOption = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Print the paper's table of a run: precision at 25, 50 and 75% recall, and average precision.

    `patchdemux table runs/coco`

    `patchdemux table runs/coco --protocol paper --all --format latex > table.tex`
    """
    opened = open_run(run, allow_incomplete)
    shown = run_table(opened, protocol, SETTINGS if attackers else TABLE_SETTINGS, chosen(margin))
    typer.echo(in_format(shown, format, digits))


@app.command()
def report(
    run: RunPath,
    output: Annotated[
        Path | None, typer.Option(help="The page to write; RUN.html if not given.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Where the run's photos are now, for the pictures. Digit scenes need no --data."
        ),
    ] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="The COCO file instances_*.json, where it is elsewhere.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="The CSV of labels, where it is elsewhere.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Between the labels of the CSV, where it is none of | ; ,")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Probability above which a label counts as predicted.")
    ] = 0.5,
    images: Annotated[
        int, typer.Option(min=0, help="Images in each half of the gallery; 0 for none.")
    ] = 6,
    margin: MarginOption = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Write one self-contained HTML page about a run: it opens offline and prints well.

    `patchdemux report runs/coco --data coco/ --output coco.html`
    """
    from patchdemux.report.page import render_page
    from patchdemux.report.pictures import open_again
    from patchdemux.report.report import run_page

    opened = open_run(run, allow_incomplete)
    options = {"annotations": annotations, "labels": labels, "separator": separator}
    if data is None and any(value is not None for value in options.values()):
        raise ValueError(
            "--annotations, --labels and --separator belong to --data, which is missing"
        )
    dataset = None if data is None else open_again(opened, data, **options)
    command = shlex.join(["patchdemux", *sys.argv[1:]])
    page = run_page(
        opened,
        dataset,
        threshold=threshold,
        images=images,
        margin=chosen(margin),
        command=command,
    )
    for note in [*page.warnings, *page.gallery_words[1:]]:
        warn(note)
    write(output or opened.path.with_name(opened.path.name + ".html"), render_page(page))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders of the runs.")],
    format: FormatOption = "text",
    attackers: Attackers = False,
    digits: Digits = None,
    margin: MarginOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Also a page (.html), or the plots alone (.svg).")
    ] = None,
) -> None:
    """Show several runs in one table, and in one plot with --output.

    `patchdemux compare runs/4x4 runs/6x6 --output masks.html`
    """
    from patchdemux.report.compare import compare as compare_runs
    from patchdemux.report.page import render_page

    if output is not None and output.suffix not in (".html", ".svg"):
        raise ValueError(f"--output must end in .html or .svg, but got {output}")
    settings = SETTINGS if attackers else TABLE_SETTINGS
    comparison = compare_runs([open_run(run) for run in runs], settings, chosen(margin))
    for warning in comparison.warnings:
        warn(f"warning: {warning}")
    typer.echo(in_format(comparison.table, format, digits))
    if output is not None:
        is_page = output.suffix == ".html"
        write(output, render_page(comparison.page) if is_page else comparison.svg)


def open_run(path: Path, allow_incomplete: bool = False) -> Run:
    """A run under the name of its folder, also where that is the current one."""
    named = path if path.name else path.resolve()
    return Run.open(named, allow_incomplete=allow_incomplete)


def chosen(margin: float | None) -> Margin:
    return "measured" if margin is None else margin


def warn(text: str) -> None:
    """A word on stderr, so that stdout stays what was asked for."""
    progress_console.print(text, style="yellow", highlight=False, soft_wrap=True, markup=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    progress_console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)
