"""MS-COCO: photos labelled by the objects that are drawn in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from patchdemux.data.files import (
    check_file_name,
    duplicate,
    open_files,
    read_labels,
    sha256,
)
from patchdemux.data.photos import PhotoSet
from patchdemux.data.preprocess import Preprocessing, as_preprocessing
from patchdemux.threat import Size

WHAT = "COCO annotations, such as instances_val2014.json"

_NAMES = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire "
    "hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, "
    "zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports "
    "ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine "
    "glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot "
    "dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop, "
    "mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, "
    "clock, vase, scissors, teddy bear, hair drier, toothbrush"
)
CLASS_NAMES = tuple(_NAMES.split(", "))
"""The classes of MS-COCO, in the order of their ids."""


def coco(
    images: str | Path,
    annotations: str | Path,
    size: Preprocessing | Size,
    *,
    keep_empty: bool = False,
) -> PhotoSet:
    """MS-COCO of any year, or any data set in its format.

    Images come in ascending order of their id, and classes in ascending order of theirs: the 80 of
    COCO. An image has the labels of all its annotations, `iscrowd` ones included, as in the published
    protocol.

    Args:
        images: the folder or zip of photos, such as val2014.
        annotations: the file instances_*.json that belongs to it.
        size: the model's input size, or how a photo is brought to it.
        keep_empty: keep images without any object. The paper leaves them out: 40,137 of the 40,504
            images of val2014 remain.
    """
    path = Path(annotations)
    content = read_labels(path, WHAT)
    tables = parse(content, path)
    photos = sorted(tables["images"], key=lambda image: image["id"])
    classes = sorted(tables["categories"], key=lambda category: category["id"])
    names = [image["file_name"] for image in photos]
    return PhotoSet(
        open_files(images, holding=names[0] if names else None),
        names,
        labels_of(photos, classes, tables["annotations"], path),
        [category["name"] for category in classes],
        as_preprocessing(size),
        keep_empty=keep_empty,
        about={"kind": "coco", "labels": path.name, "labels_sha256": sha256(content)},
    )


# What is read of every entry of the three tables.
FIELDS: dict[str, dict[str, type]] = {
    "images": {"id": int, "file_name": str},
    "categories": {"id": int, "name": str},
    "annotations": {"image_id": int, "category_id": int},
}


def parse(content: bytes, path: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables of images, categories and annotations, checked entry by entry."""
    try:
        tables = json.loads(content, object_hook=without_outlines)
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file, or a damaged one ({error})") from error
    for table, fields in FIELDS.items():
        if not isinstance(tables, dict) or not isinstance(tables.get(table), list):
            raise ValueError(f"{path} has no list {table!r}; expected {WHAT}")
        for place, entry in enumerate(tables[table]):
            for field, kind in fields.items():
                if not isinstance(entry, dict) or not isinstance(entry.get(field), kind):
                    raise ValueError(
                        f"{path}: entry {place} of {table!r} has no {field!r} of type "
                        f"{kind.__name__}; expected {WHAT}"
                    )
    for table, field in (
        ("images", "id"),
        ("images", "file_name"),
        ("categories", "id"),
        ("categories", "name"),
    ):
        twice = duplicate([entry[field] for entry in tables[table]])
        if twice is not None:
            raise ValueError(f"{path}: {field} {twice!r} occurs twice in {table!r}")
    for image in tables["images"]:
        check_file_name(image["file_name"], str(path))
    checked: dict[str, list[dict[str, Any]]] = tables
    return checked


def without_outlines(entry: dict[str, Any]) -> dict[str, Any]:
    """Forget the outline of an object as soon as it is read: outlines are nearly all of the file."""
    entry.pop("segmentation", None)
    return entry


def labels_of(
    photos: list[dict[str, Any]],
    classes: list[dict[str, Any]],
    annotations: list[dict[str, Any]],
    path: Path,
) -> Bool[np.ndarray, "image class"]:
    """Which classes are drawn in which photo."""
    row = {image["id"]: place for place, image in enumerate(photos)}
    column = {category["id"]: place for place, category in enumerate(classes)}
    targets = np.zeros((len(photos), len(classes)), bool)
    for place, annotation in enumerate(annotations):
        image, category = annotation["image_id"], annotation["category_id"]
        if image not in row or category not in column:
            unknown = f"image {image}" if image not in row else f"category {category}"
            raise ValueError(
                f"{path}: annotation {annotation.get('id', f'number {place}')} refers to {unknown}, "
                f"which the file does not list"
            )
        targets[row[image], column[category]] = True
    return targets
