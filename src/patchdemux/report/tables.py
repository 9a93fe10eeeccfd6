"""Tables of figures in five formats: text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Cell = str | float
Format = Literal["text", "markdown", "latex", "csv", "json"]
WIDTH = 100  # of the notes below a table in a terminal
UNKNOWN = "–"  # noqa: RUF001


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name for programs.
        heading: its name for people.
        meaning: what it is, where the heading does not say it all.
        figure: whether it holds shares, to be shown in percent, and not words.
        for_people: whether text, Markdown and LaTeX show it; CSV and JSON show all.
    """

    key: str
    heading: str = ""
    meaning: str = ""
    figure: bool = True
    for_people: bool = True


@dataclass(frozen=True)
class Table:
    """Words and shares; a share that is NaN is not known.

    Attributes:
        caption: what is measured, in one line.
        columns: what the columns are.
        rows: one cell per column key.
        notes: what a reader must know beside the figures.
        about: further facts for programs, as plain JSON values.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> list[Column]:
        """The columns for people."""
        return [column for column in self.columns if column.for_people]

    @property
    def meanings(self) -> str:
        """What the columns are, in one line."""
        return "; ".join(f"{c.heading}: {c.meaning}" for c in self.shown if c.meaning)

    def texts(self, digits: int) -> list[list[str]]:
        """The cells for people, shares in percent."""
        return [[shown(row[c.key], digits) for c in self.shown] for row in self.rows]

    def records(self, digits: int | None) -> Iterator[dict[str, Cell | None]]:
        """The cells for programs, shares in percent, None where not known."""
        for row in self.rows:
            yield {c.key: plain(row[c.key], digits) for c in self.columns}


def shown(cell: Cell, digits: int) -> str:
    """A cell for people."""
    if isinstance(cell, str):
        return cell
    return UNKNOWN if math.isnan(cell) else f"{100 * cell:.{digits}f}"


def plain(cell: Cell, digits: int | None) -> Cell | None:
    """A cell for programs, rounded only if digits are given."""
    if isinstance(cell, str):
        return cell
    if math.isnan(cell):
        return None
    percent = 100 * float(cell)
    return percent if digits is None else round(percent, digits)


def as_text(table: Table, digits: int = 3) -> str:
    """Columns that line up in a terminal."""
    lines = [[c.heading for c in table.shown], *table.texts(digits)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for line in lines:
        cells = [
            text.rjust(width) if column.figure else text.ljust(width)
            for text, width, column in zip(line, widths, table.shown, strict=True)
        ]
        rows.append("  ".join(cells).rstrip())
    rows.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    notes = (f"Percent. {table.meanings}.", *table.notes)
    wrapped = (textwrap.fill(note, WIDTH, break_long_words=False) for note in notes)
    return "\n".join([table.caption, "", *rows, "", *wrapped])


def as_markdown(table: Table, digits: int = 3) -> str:
    """A table as GitHub and many others show it."""
    lines = [[c.heading for c in table.shown], *table.texts(digits)]
    rows = ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in lines]
    rows.insert(1, "|" + "|".join("---:" if c.figure else "---" for c in table.shown) + "|")
    notes = [escape_markdown(note) for note in (f"Percent. {table.meanings}.", *table.notes)]
    return "\n".join([escape_markdown(table.caption), "", *rows, "", *notes])


def as_latex(table: Table, digits: int = 3) -> str:
    """A table with the rules of booktabs."""
    rows = [" & ".join(map(escape_latex, line)) + r" \\" for line in table.texts(digits)]
    caption = " ".join(escape_latex(part) for part in (f"{table.caption}. Percent.", *table.notes))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{''.join('r' if c.figure else 'l' for c in table.shown)}}}",
            r"\toprule",
            " & ".join(escape_latex(c.heading) for c in table.shown) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def as_csv(table: Table, digits: int | None = None) -> str:
    """One line per row, all columns, an empty cell where a figure is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [c.key for c in table.columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.records(digits))
    return text.getvalue().rstrip("\n")


def as_json(table: Table, digits: int | None = None) -> str:
    """Everything there is, null where a figure is not known."""
    content = {**table.about, "unit": "percent", "rows": list(table.records(digits))}
    return json.dumps(
        {**content, "notes": list(table.notes)}, indent=2, allow_nan=False, ensure_ascii=False
    )


FORMATS: dict[Format, Callable[..., str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def in_format(table: Table, name: Format, digits: int | None = None) -> str:
    """The table in one of `FORMATS`; CSV and JSON are not rounded unless digits are given."""
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, but got {name!r}")
    return FORMATS[name](table) if digits is None else FORMATS[name](table, digits)


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join("\\" + letter if letter in "\\|*_`<[" else letter for letter in text)


_LATEX = {
    **{letter: "\\" + letter for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    UNKNOWN: "--",
}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
