"""From what a person types to a data set: a folder, a zip, a VOCdevkit, COCO, or digit scenes."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from patchdemux.data.base import ImageSet
from patchdemux.data.coco import coco
from patchdemux.data.folder import folder
from patchdemux.data.preprocess import Preprocessing, as_preprocessing
from patchdemux.data.tensors import TensorSet
from patchdemux.data.voc import splits_of, voc
from patchdemux.threat import Size

DIGIT_SCENES = 200  # where no number is given


def open_dataset(
    spec: str | Path,
    size: Preprocessing | Size | None = None,
    *,
    annotations: str | Path | None = None,
    labels: str | Path | None = None,
    classes: Sequence[str] | None = None,
    separator: str | None = None,
    year: int | str | None = None,
    split: str | None = None,
    difficult: bool | None = None,
    keep_empty: bool | None = None,
) -> ImageSet:
    """The data set that `spec` means. The first that fits:

    - `digits` or `digits:500`: digit scenes of a `split` ("test"); they bring their own size
    - a folder or zip of photos together with `annotations`: a COCO file
    - a folder or zip that holds `labels` (labels.csv), or whose `labels` is a file elsewhere
    - the folder VOCdevkit, or the folder that it is in, with `year` and `split`
    - a COCO folder: instances_*.json in it or in its `annotations`, beside the photos; `split` such
      as "val2014" says which, where there are several

    The size is the model's, or how a photo is brought to it. See `coco`, `folder` and `voc` for the
    other options and their defaults. One that does not belong to what was found is an error.
    """
    options: dict[str, Any] = {
        "annotations": annotations,
        "labels": labels,
        "classes": classes,
        "separator": separator,
        "year": year,
        "split": split,
        "difficult": difficult,
        "keep_empty": keep_empty,
    }
    given = {name: value for name, value in options.items() if value is not None}
    kind, _, count = str(spec).partition(":")
    if kind == "digits" and not Path(spec).exists():
        check_options(given, "digit scenes", ["split"])
        return digits(count, size, split or "test")
    path = Path(spec)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or zip {path}, and it is not 'digits' either")
    if size is None:
        raise ValueError(f"photos need `size`, the height and width of the model's input: {path}")
    if annotations is not None:
        check_options(given, "COCO annotations", ["annotations", "keep_empty"])
        return coco(photos_beside(Path(annotations), path), size=size, **given)
    if labels is not None or holds_labels(path):
        check_options(given, "a CSV", ["labels", "classes", "separator", "keep_empty"])
        return folder(path, size, **given)
    if years := voc_years(path):
        check_options(given, "PASCAL VOC", ["year", "split", "difficult", "keep_empty"])
        given["year"] = the_one("year", None if year is None else str(year), years, path)
        root = years[given["year"]]
        given["split"] = the_one("split", split, splits_of(root), root)
        return voc(root.parent, size, **given)
    if files := coco_files(path):
        check_options(given, "COCO", ["split", "keep_empty"])
        file = files[the_one("split", given.pop("split", None), files, path)]
        return coco(photos_beside(file, path), file, size, **given)
    raise FileNotFoundError(
        f"found no data set in {path}; looked for: labels.csv with the labels of the images; "
        f"folders VOC2007 (or of another year) or VOCdevkit/VOC2007; files instances_*.json or "
        f"annotations/instances_*.json. For labels elsewhere, give `labels` (a CSV file) or "
        f"`annotations` (a COCO file)"
    )


def check_options(given: Mapping[str, Any], kind: str, known: Sequence[str]) -> None:
    """Refuse an option that would have no effect."""
    for name in given:
        if name not in known:
            raise ValueError(f"the option `{name}` does not apply to {kind}, only {known} do")


def digits(count: str, size: Preprocessing | Size | None, split: str) -> TensorSet:
    """Digit scenes: as many as `count` says, of the size that they have."""
    from patchdemux.data.digits import digit_scenes

    if count and not (count.isdecimal() and int(count) > 0):
        raise ValueError(
            f"'digits:{count}': after the colon comes a number of scenes, as in digits:500"
        )
    number = int(count) if count else DIGIT_SCENES
    scenes = digit_scenes(number, split=split)
    height, width = scenes.images.shape[-2:]
    if size is not None and as_preprocessing(size).image_size != (height, width):
        wanted = " x ".join(str(side) for side in as_preprocessing(size).image_size)
        raise ValueError(f"digit scenes are {height} x {width} pixels and cannot be made {wanted}")
    return TensorSet(scenes.images, scenes.targets, scenes.class_names, f"digits {split}")


def holds_labels(path: Path) -> bool:
    """Whether there is a labels.csv in the folder, or anywhere in the zip."""
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(PurePosixPath(name).name == "labels.csv" for name in archive.namelist())
    return (path / "labels.csv").is_file()


def voc_years(path: Path) -> dict[str, Path]:
    """The PASCAL VOC years in a folder, or in the VOCdevkit in it."""
    folders = [*path.glob("VOC[0-9]*/"), *path.glob("VOCdevkit/VOC[0-9]*/")]
    return {
        folder.name.removeprefix("VOC"): folder
        for folder in reversed(folders)
        if (folder / "ImageSets" / "Main").is_dir()
    }


def coco_files(path: Path) -> dict[str, Path]:
    """The splits of COCO in a folder, and their annotation files."""
    files = [*path.glob("instances_*.json"), *path.glob("annotations/instances_*.json")]
    return {file.stem.removeprefix("instances_"): file for file in reversed(files)}


def photos_beside(annotations: Path, path: Path) -> Path:
    """The folder or zip of a COCO file's photos: named as its split below `path`, else `path`."""
    split = annotations.stem.removeprefix("instances_")
    for place in (path / split, path / "images" / split, path / f"{split}.zip"):
        if place.exists():
            return place
    return path


def the_one(what: str, wanted: str | None, found: Collection[str], path: Path) -> str:
    """The wanted one of what was found, or the only one there is."""
    listed = ", ".join(sorted(found)) or "none"
    if wanted is None and len(found) != 1:
        raise ValueError(f"{path}: say with `{what}` which one; it has: {listed}")
    if wanted is not None and wanted not in found:
        raise ValueError(f"{path} has no {what} {wanted!r}; it has: {listed}")
    return next(iter(found)) if wanted is None else wanted
