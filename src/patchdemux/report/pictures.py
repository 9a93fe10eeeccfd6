"""The pixels of a run's images, which a run does not store, from its data set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from patchdemux.data.base import ImageSet
from patchdemux.data.open import open_dataset
from patchdemux.data.preprocess import Preprocessing
from patchdemux.runs import Run, RunError, differences
from patchdemux.runs.fingerprint import data_fields
from patchdemux.runs.store import RunStore

WITHOUT = (
    "A run does not store pixels, and its data set was not given (--data), so places are drawn on "
    "blank canvases."
)


class Pictures:
    """The images of a data set by name, or none of them.

    Attributes:
        note: what a reader of the pictures must know; empty if nothing.
    """

    def __init__(self, dataset: ImageSet | None, note: str = "") -> None:
        self.note = note
        self._dataset = dataset
        self._places = {} if dataset is None else {n: i for i, n in enumerate(dataset.names)}

    def __getitem__(self, name: str) -> Tensor | None:
        return None if self._dataset is None else self._dataset[self._places[name]]


def pictures_of(run: Run, dataset: ImageSet | None = None) -> Pictures:
    """The pictures of a run, from its data set, if it is given or can be made again.

    Raises:
        RunError: the data set is not the one of the run.
    """
    if dataset is not None:
        return Pictures(dataset, check_same(run, dataset))
    if not is_digits(run):
        return Pictures(None, WITHOUT)
    try:
        scenes = digits_again(run)
        return Pictures(scenes, check_same(run, scenes))
    except (RunError, ImportError, ValueError) as error:
        note = f"The digit scenes could not be made again ({error}): places are on blank canvases."
        return Pictures(None, note)


def check_same(run: Run, dataset: ImageSet) -> str:
    """Refuse other images or labels than the run's; a note if only pixels differ."""
    names = [str(name) for name in RunStore.open(run.path).read("name")]
    places = {name: place for place, name in enumerate(dataset.names)}
    missing = [name for name in names if name not in places]
    if missing:
        raise RunError(
            f"this is not the data set of the run: it has no image {missing[0]!r}"
            + (f" (and lacks {len(missing) - 1:,} others)" if missing[1:] else "")
        )
    of = "images", "names", "class_names", "targets", "pixels"
    recorded, found = run.fingerprint, data_fields(dataset, [places[name] for name in names])
    changed = differences(only(recorded, of[:-1]), only(found, of[:-1]))
    if changed or tuple(dataset.image_size) != tuple(run.attributes["image_size"]):
        size = f"its images have {dataset.image_size} pixels"
        raise RunError(f"this is not the data set of the run: {'; '.join(changed) or size}")
    if differences(only(recorded, of), only(found, of)):
        return (
            "The pixels of these pictures are not exactly those that were evaluated: another way of "
            "resizing or decoding, or other files of the same names."
        )
    return ""


def only(fields: Any, names: Iterable[str]) -> dict[str, Any]:
    """Some of the fields."""
    return {name: fields.get(name) for name in names}


def is_digits(run: Run) -> bool:
    data = run.attributes["data"]
    return bool(data.get("kind") == "tensors" and str(data.get("name")).startswith("digits "))


def digits_again(run: Run) -> ImageSet:
    """The digit scenes of a run, which nothing but their number and split decides."""
    data = run.attributes["data"]
    return open_dataset(f"digits:{data['shape'][0]}", split=data["name"].split()[1])


def open_again(run: Run, data: str | Path, **options: Any) -> ImageSet:
    """The data set of a run at `data`, prepared as the run recorded it.

    Args:
        run: whose data set.
        data: where it is now: what `open_dataset` takes.
        options: where annotations or labels are, if elsewhere. All else is known from the run.
    """
    known = run.attributes["data"]
    options = {name: value for name, value in options.items() if value is not None}
    if is_digits(run):
        return open_dataset(data, split=known["name"].split()[1], **options)
    kind = known.get("kind")
    if kind not in ("coco", "voc", "folder"):
        raise RunError(
            f"the run was made with data of the kind {kind!r}, which cannot be opened by its path; "
            f"in Python, give the data set itself to patchdemux.report.report.run_page"
        )
    options["keep_empty"] = known["keep_empty"]
    if kind == "voc":
        year, _, options["split"] = known["labels"].removeprefix("VOC").partition(" ")
        options |= {"year": year, "difficult": known["difficult"]}
    elif kind == "coco" and "annotations" not in options:
        options["split"] = Path(known["labels"]).stem.removeprefix("instances_")
    elif kind == "folder":
        options = {"labels": known["labels"], "classes": known["classes"], **options}
    return open_dataset(data, Preprocessing(**known["preprocessing"]), **options)
