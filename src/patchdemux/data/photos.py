"""Labelled photos in a folder or a zip: what the COCO, VOC and CSV readers all return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from patchdemux.data.base import ImageSet
from patchdemux.data.decode import photo_size
from patchdemux.data.files import FolderFiles, ZipFiles, sha256
from patchdemux.data.preprocess import Preprocessing


class PhotoSet(ImageSet):
    """Labelled photos in a folder or a zip.

    Args:
        files: where the photos are.
        names: their file names.
        targets: their labels.
        class_names: the names of the classes.
        preprocessing: how a photo becomes the model's input.
        keep_empty: keep photos without any object; else they are left out, and counted.
        about: what else decides photos and labels, as plain JSON values.
    """

    def __init__(
        self,
        files: FolderFiles | ZipFiles,
        names: Sequence[str],
        targets: Bool[np.ndarray, "image class"],
        class_names: Sequence[str],
        preprocessing: Preprocessing,
        *,
        keep_empty: bool,
        about: Mapping[str, Any],
    ) -> None:
        kept = np.logical_or(keep_empty, targets.any(axis=1)).reshape(-1)
        if not kept.any():
            found = f"all {len(names)} images are without objects" if names else "no images"
            raise ValueError(f"the data set is empty: {found} in {about['labels']}")
        self.files = files
        self.preprocessing = preprocessing
        self.image_size = preprocessing.image_size
        self.class_names = tuple(class_names)
        self.names = tuple(name for name, keep in zip(names, kept, strict=True) if keep)
        self.targets = targets[kept]
        self.targets.setflags(write=False)
        self.description = {
            **about,
            "classes": list(self.class_names),
            "targets_sha256": sha256(self.targets.tobytes()),
            "keep_empty": keep_empty,
            "empty_left_out": int((~kept).sum()),
            "images": len(self.names),
            **files.fingerprint(self.names),
            "preprocessing": preprocessing.description,
        }

    def __getitem__(self, index: int) -> Tensor:
        name = self.names[index]
        return self.preprocessing(self.files.read(name), self.files.where(name))

    def photo_size(self, index: int) -> tuple[int, int]:
        """Height and width of this photo, before it is resized."""
        name = self.names[index]
        rotation = self.preprocessing.exif_rotation
        return photo_size(self.files.read(name), self.files.where(name), exif_rotation=rotation)

    def absence(self, index: int) -> str | None:
        """Why this image cannot be read, as far as that is seen without reading it; else None."""
        return self.files.absence(self.names[index])
