"""A run on disk: one Zarr group that xarray reads, written chunk by chunk.

    clean, defended   (image, class)          float32
    lower, upper      (image, region, class)  float32
    targets           (image, class)          bool
    name, done        (image)                 string, bool
    class             (class)                 string: the class names, an index for xarray
    box               (region, side)          int64: top, left, height, width; where known

A kill at any moment leaves a run that can be resumed. The group is built under another name and
then renamed. Zarr writes every file under another name and then renames it. And `done` of a chunk,
a file of its own, is written last, after the chunk's scores were forced to disk.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from patchdemux.bounds import ScoreBounds
from patchdemux.runs.errors import RunError

try:
    import zarr
    from zarr.codecs import BloscCodec
except ImportError as error:
    raise ImportError("runs need zarr: pip install 'patchdemux[runs]'") from error

FORMAT = 1
FORMAT_KEY = "patchdemux_run"
SCORES = ("clean", "defended", "lower", "upper")
SIDES = ("top", "left", "height", "width")


class RunStore:
    """The arrays and attributes of one run; `RunStore.create` and `RunStore.open` make it."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self.path = path
        self.attributes: dict[str, Any] = dict(group.attrs)
        self.arrays: dict[str, Any] = dict(group.arrays())
        self._group = group

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        names: Sequence[str],
        targets: Bool[np.ndarray, "image class"],
        class_names: Sequence[str],
        regions: int,
        boxes: Int[np.ndarray, "region 4"] | None,
        images_per_chunk: int,
        attributes: Mapping[str, Any],
    ) -> RunStore:
        """A run without any scores yet."""
        images, classes = targets.shape
        rows = min(images_per_chunk, images)
        new = path.with_name(path.name + ".new")
        with writing(path, 0, images):
            shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed here
            group = zarr.open_group(new, mode="w-", zarr_format=3)
            for name in SCORES:
                dims = ("image", "region", "class") if name in ("lower", "upper") else _IMAGE_CLASS
                shape = (images, regions, classes) if len(dims) == 3 else (images, classes)
                _add(group, name, dims, shape, (rows, *shape[1:]), "float32", np.nan)
            _add(group, "done", ("image",), (images,), (rows,), "bool", False)
            _fill(group, "targets", _IMAGE_CLASS, targets.astype(bool))
            _fill(group, "name", ("image",), np.array(names, dtype=object))
            _fill(group, "class", ("class",), np.array(class_names, dtype=object))
            if boxes is not None:
                _fill(group, "side", ("side",), np.array(SIDES, dtype=object))
                _fill(group, "box", ("region", "side"), np.asarray(boxes, np.int64))
            coordinates = "name" if boxes is None else "name box"
            group.attrs.put({FORMAT_KEY: FORMAT, "coordinates": coordinates, **attributes})
            with (
                warnings.catch_warnings()
            ):  # xarray wants it; Zarr warns that other readers may not
                warnings.filterwarnings("ignore", message="Consolidated metadata")
                zarr.consolidate_metadata(group.store)
            os.rename(new, path)
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> RunStore:
        """The run at `path`, or an error that says what is there instead."""
        if not path.exists():
            raise RunError(f"there is no run at {path}")
        if not (path / "zarr.json").is_file():
            raise RunError(f"{path} is no run of patchdemux; nothing there was touched")
        with reading(path):
            group = zarr.open_group(path, mode="r+" if writable else "r")
            version = group.attrs.get(FORMAT_KEY)
        if not isinstance(version, int):
            raise RunError(
                f"{path} is a Zarr group, but no run of patchdemux; nothing there was touched"
            )
        if version > FORMAT:
            raise RunError(
                f"{path} has run format {version}, but this version of patchdemux reads formats "
                f"up to {FORMAT}; update it: pip install -U patchdemux"
            )
        return cls(path, group)

    def done(self) -> Bool[np.ndarray, " image"]:
        """Which images are finished."""
        return self.read("done")

    def read(self, name: str) -> np.ndarray:
        """A whole array."""
        with reading(self.path):
            return np.asarray(self.arrays[name][:])

    def write(self, chunk: range, bounds: ScoreBounds) -> None:
        """Store the scores of one chunk of images, and only then call it done."""
        for name in SCORES:
            values = getattr(bounds, name)
            if values.dtype != np.float32:  # rounding could break a bound
                raise RunError(f"runs store float32, but the defense gave {values.dtype} {name}")
            self.arrays[name][chunk.start : chunk.stop] = values
        for name in SCORES:
            self._force_to_disk(name, chunk)
        self.arrays["done"][chunk.start : chunk.stop] = True

    def update(self, **attributes: Any) -> None:
        """Change attributes; they are one file, replaced at once."""
        self._group.attrs.update(attributes)
        self.attributes.update(attributes)

    def clean(self) -> None:
        """Remove files that a killed process was writing."""
        for file in self.path.rglob("*.partial"):
            file.unlink()

    def _force_to_disk(self, name: str, chunk: range) -> None:
        """Some file systems report only now that the disk is full."""
        array = self.arrays[name]
        number = chunk.start // array.chunks[0]
        key = array.metadata.encode_chunk_key((number,) + (0,) * (array.ndim - 1))
        file = os.open(self.path / name / key, os.O_RDWR)
        try:
            os.fsync(file)
        finally:
            os.close(file)


_IMAGE_CLASS = ("image", "class")


def _add(
    group: zarr.Group,
    name: str,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    empty: Any,
) -> Any:
    """An array with named dimensions; each of its chunks is one file in one folder."""
    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=empty,
        dimension_names=dims,
        chunk_key_encoding={"name": "default", "separator": "."},
        compressors=BloscCodec(cname="zstd", clevel=5, shuffle="shuffle"),
    )


def _fill(group: zarr.Group, name: str, dims: tuple[str, ...], values: np.ndarray) -> None:
    """A small array in one chunk."""
    text = values.dtype == object
    dtype, empty = (str, "") if text else (values.dtype, values.dtype.type(0))
    _add(group, name, dims, values.shape, values.shape, dtype, empty)[...] = values


@contextmanager
def writing(path: Path, done: int, images: int) -> Iterator[None]:
    """A full disk and the like, as an error that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; {done} of {images} images are safe, "
            f"and the same command resumes there once this is solved"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that is missing or broken, as an error that names the run."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise RunError(f"the run at {path} cannot be read: {error}") from error


def bytes_per_image(regions: int, classes: int) -> int:
    """Disk space of one image at most: before compression, with room for its name."""
    return 4 * classes * 2 * (1 + regions) + classes + 128
