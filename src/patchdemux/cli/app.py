"""What all commands share: the application, the console, progress bars, and how errors end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from patchdemux import __version__
from patchdemux import engine as engine_room
from patchdemux.data.base import ImageError
from patchdemux.runs.errors import RunError

console = Console()
app = typer.Typer(
    help="Certified robustness of multi-label image classifiers against adversarial patches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError, ImageError, RunError)
"""Errors that speak to the user: one line is enough."""


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


def main() -> None:
    """Run the command; errors are one line, with the traceback only under --debug."""
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"error: {in_words(error)}", fg=typer.colors.RED, err=True)
        sys.exit(1)


def in_words(error: Exception) -> str:
    """What went wrong; of an error from elsewhere, such as the user's model, kind and first line."""
    text = str(error)
    if isinstance(error, EXPECTED) and text:
        return text
    first = text.strip().partition("\n")[0]
    return f"{type(error).__name__}: {first} (--debug shows where)"


@contextmanager
def views_bar(what: str) -> Iterator[engine_room.Progress]:
    """A progress bar over masked views."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("views"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
