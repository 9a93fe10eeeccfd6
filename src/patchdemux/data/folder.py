"""A folder or zip of images with their labels in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from patchdemux.data.files import ZipFiles, check_file_name, duplicate, open_files, sha256
from patchdemux.data.photos import PhotoSet
from patchdemux.data.preprocess import Preprocessing, as_preprocessing
from patchdemux.threat import Size

SEPARATORS = ("|", ";", ",")


class Row(NamedTuple):
    """One image's line of the CSV."""

    line: int
    file: str
    cells: list[str]


def folder(
    path: str | Path,
    size: Preprocessing | Size,
    *,
    labels: str | Path = "labels.csv",
    classes: Sequence[str] | None = None,
    separator: str | None = None,
    keep_empty: bool = True,
) -> PhotoSet:
    """A folder or zip of images with a CSV file, in the order of its rows.

    The CSV's first column is `file`: names relative to the folder of the CSV in a zip, else relative
    to `path`. It decides which images belong to the set. What follows is either

    - one column per class, with 0 or 1 in every cell, or
    - one column named `labels` with a list of class names per image, such as `cat|traffic light`.
      They are separated by | or ; or , (quoted, as the CSV needs it), whichever occurs; blanks
      around names do not count. An empty cell means no object.

    Args:
        path: the folder or zip.
        size: the model's input size, or how a photo is brought to it.
        labels: the CSV: its name in the folder or zip, or the path of a file elsewhere.
        classes: the class names in order. Default: the CSV's columns, or all labels that occur, in
            alphabetical order. A label outside them is an error.
        separator: between labels, where it is none of | ; , or where several of these occur.
        keep_empty: keep images without any object.
    """
    content, source, files = find_labels(path, labels)
    header, rows = parse(content, source)
    if header[1:] == ["labels"]:
        names, targets = from_lists(rows, classes, separator, source)
    else:
        names, targets = from_columns(header[1:], rows, classes, source)
    return PhotoSet(
        files or open_files(path, holding=rows[0].file),
        [row.file for row in rows],
        targets,
        names,
        as_preprocessing(size),
        keep_empty=keep_empty,
        about={
            "kind": "folder",
            "labels": Path(labels).name,
            "labels_sha256": sha256(content),
        },
    )


def find_labels(path: str | Path, labels: str | Path) -> tuple[bytes, str, ZipFiles | None]:
    """The CSV's content, its place for messages, and the zip that it was found in, if any."""
    files = open_files(path, holding=str(labels))
    if isinstance(files, ZipFiles) and files.size(str(labels)) is not None:
        return files.read(str(labels)), files.where(str(labels)), files
    for place in (Path(path) / labels, Path(labels)):
        if place.is_file():
            return place.read_bytes(), str(place), None
    raise FileNotFoundError(f"there is no file {labels} with the labels in {path}")


def parse(content: bytes, source: str) -> tuple[list[str], list[Row]]:
    """The header and the rows, every one with a file of its own and all cells."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text ({error})") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    lines: dict[str, int] = {}
    try:
        header = [cell.strip() for cell in next(reader, [])]
        check_header(header, source)
        for cells in reader:
            if not cells:  # a blank line
                continue
            line = reader.line_num
            if len(cells) != len(header):
                raise ValueError(
                    f"{source}, line {line}: {len(cells)} cells, but the header has {len(header)}"
                )
            file = cells[0].strip()
            check_file_name(file, f"{source}, line {line}")
            if file in lines:
                raise ValueError(
                    f"{source}: {file} is listed twice, in lines {lines[file]}, {line}"
                )
            lines[file] = line
            rows.append(Row(line, file, [cell.strip() for cell in cells[1:]]))
    except csv.Error as error:
        raise ValueError(f"{source}, line {reader.line_num}: not a CSV file ({error})") from error
    if not rows:
        raise ValueError(f"the data set is empty: no images in {source}")
    return header, rows


def check_header(header: list[str], source: str) -> None:
    """Refuse a header without `file`, without classes, or with a column twice."""
    if not header or header[0] != "file":
        raise ValueError(
            f"{source} must have a first line of column names, and the first of them must be 'file', "
            f"but it begins with {header[0] if header else ''!r}"
        )
    if len(header) < 2:
        raise ValueError(f"{source} has no columns after 'file': neither classes nor 'labels'")
    if "" in header:
        raise ValueError(f"{source}: column {header.index('') + 1} has no name")
    if (twice := duplicate(header)) is not None:
        raise ValueError(f"{source} has two columns named {twice!r}")


def from_columns(
    columns: list[str], rows: list[Row], classes: Sequence[str] | None, source: str
) -> tuple[list[str], Bool[np.ndarray, "image class"]]:
    """Class names and targets of a CSV with one 0/1 column per class."""
    names = list(columns) if classes is None else list(classes)
    check_classes(names)
    for column in columns:
        if column not in names:
            raise ValueError(f"{source}: column {column!r} is not in the list of classes")
    for name in names:
        if name not in columns:
            raise ValueError(f"{source} has no column for the class {name!r}")
    for row in rows:
        for column, cell in zip(columns, row.cells, strict=True):
            if cell not in ("0", "1"):
                hint = (
                    "" if len(columns) > 1 else "; a column of label lists must be named 'labels'"
                )
                raise ValueError(
                    f"{source}, line {row.line} ({row.file}), column {column!r}: must be 0 or 1, "
                    f"but is {cell!r}{hint}"
                )
    targets = np.array([row.cells for row in rows]) == "1"
    return names, targets[:, [columns.index(name) for name in names]]


def from_lists(
    rows: list[Row], classes: Sequence[str] | None, separator: str | None, source: str
) -> tuple[list[str], Bool[np.ndarray, "image class"]]:
    """Class names and targets of a CSV with one column of label lists."""
    separator = separator or find_separator(rows, source)
    lists = [
        {label.strip() for label in row.cells[0].split(separator)} - {""} if row.cells[0] else set()
        for row in rows
    ]
    names = sorted(set().union(*lists)) if classes is None else list(classes)
    if not names:
        raise ValueError(f"{source}: no image has a label, so there are no classes; give `classes`")
    check_classes(names)
    column = {name: place for place, name in enumerate(names)}
    targets = np.zeros((len(rows), len(names)), bool)
    for place, (row, found) in enumerate(zip(rows, lists, strict=True)):
        for label in sorted(found):
            if label not in column:
                raise ValueError(
                    f"{source}, line {row.line} ({row.file}): label {label!r} is not in the list of "
                    f"classes; labels are taken to be separated by {separator!r}"
                )
            targets[place, column[label]] = True
    return names, targets


def find_separator(rows: list[Row], source: str) -> str:
    """The separator that occurs; two kinds of them need a word from the user."""
    found = [mark for mark in SEPARATORS if any(mark in row.cells[0] for row in rows)]
    if len(found) > 1:
        raise ValueError(
            f"{source}: labels could be separated by {' or '.join(map(repr, found))}; "
            f"say which with `separator`"
        )
    return found[0] if found else SEPARATORS[0]


def check_classes(names: list[str]) -> None:
    """Refuse a list of classes with a name twice."""
    if (twice := duplicate(names)) is not None:
        raise ValueError(f"the class {twice!r} occurs twice in the list of classes")
