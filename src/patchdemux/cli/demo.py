"""`patchdemux demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from patchdemux.cli.app import app, console, views_bar
from patchdemux.report.summary import HEADINGS, Row


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
