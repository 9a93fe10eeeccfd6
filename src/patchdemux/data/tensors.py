"""Images that are in memory already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from patchdemux.data.base import ImageSet
from patchdemux.data.files import duplicate, sha256
from patchdemux.inputs import as_targets


class TensorSet(ImageSet):
    """Images and labels in memory.

    Args:
        images: floats (image, channel, height, width) in [0, 1].
        targets: 0 or 1 per image and class.
        class_names: one name per class.
        name: of the set; image 7 of it is called "name 7".
    """

    def __init__(self, images: Tensor, targets: Any, class_names: Sequence[str], name: str) -> None:
        if images.ndim != 4 or 0 in images.shape:
            raise ValueError(
                "images must be a tensor (image, channel, height, width) without empty dimensions, "
                f"but got shape {tuple(images.shape)}"
            )
        if not images.is_floating_point():
            raise TypeError(
                f"images must be floats in [0, 1], but got {images.dtype}; divide bytes by 255"
            )
        images = images.detach().cpu().float().contiguous()
        if not ((images >= 0) & (images <= 1)).all():  # also false for NaN
            raise ValueError("images must have all pixels within [0, 1]")
        if (twice := duplicate(class_names)) is not None:
            raise ValueError(f"class_names has {twice!r} twice")
        self.images = images
        self.class_names = tuple(class_names)
        self.targets = as_targets(targets, (len(images), len(self.class_names))).copy()
        self.targets.setflags(write=False)
        self.names = tuple(f"{name} {index}" for index in range(len(images)))
        self.image_size = (int(images.shape[2]), int(images.shape[3]))
        self.description = {
            "kind": "tensors",
            "name": name,
            "classes": list(self.class_names),
            "images": len(images),
            "shape": list(images.shape),
            "images_sha256": sha256(images.numpy().tobytes()),
            "targets_sha256": sha256(np.ascontiguousarray(self.targets).tobytes()),
        }

    def __getitem__(self, index: int) -> Tensor:
        return self.images[range(len(self))[index]].clone()
