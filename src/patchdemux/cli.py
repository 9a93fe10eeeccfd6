"""The command line: a thin shell over the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from patchdemux import __version__
from patchdemux import engine as engine_room
from patchdemux.report.summary import HEADINGS, Row

console = Console()
app = typer.Typer(
    help="Certified robustness of multi-label image classifiers against adversarial patches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"patchdemux {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of errors.")] = (
        False
    ),
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("patchdemux-demo"),
    scenes: Annotated[int, typer.Option(min=1, help="Number of test scenes.")] = 200,
    patch: Annotated[
        float, typer.Option(help="The patch's share of the image, 0.02 is 2%.")
    ] = 0.02,
    masks: Annotated[int, typer.Option(min=1, help="Rows and columns of masks.")] = 6,
) -> None:
    """Defend a small classifier of handwritten digits, certify it, and write a page about it.

    Needs no data and no network: `patchdemux demo --scenes 50 --patch 0.01`
    """
    from patchdemux.demo import run_demo

    with views_bar("certifying") as progress:
        result = run_demo(
            output, scenes=scenes, patch=patch, masks=(masks, masks), progress=progress
        )
    console.print(f"{result.masks}", highlight=False)
    console.print(
        f"{scenes} scenes, {result.views} forward passes each, in {result.seconds:.1f} s\n"
    )
    console.print(results_table(result.rows))
    console.print(f"\nplots and pictures: {result.page.resolve()}", soft_wrap=True, highlight=False)


def results_table(rows: list[Row]) -> Table:
    """The paper's table for the terminal, in percent."""
    table = Table("setting", *HEADINGS, title="Precision and recall (%)", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.name, *(f"{100 * figure:.1f}" for figure in row.figures))
    return table


@contextmanager
def views_bar(what: str) -> Iterator[engine_room.Progress]:
    """A progress bar over masked views."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("views"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def main() -> None:
    """Run the command; errors are one line, with the traceback only under --debug."""
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(1)
