"""What a data set is: named images of one size, with a 0/1 label per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor


class ImageError(ValueError):
    """An image that cannot be read; the message names it and says why."""


class ImageSet(ABC):
    """Images with labels, read one by one when they are needed.

    Attributes:
        class_names: one name per class.
        names: one unique name per image, such as its file name.
        targets: (image, class) labels.
        image_size: height and width of every image.
        description: everything that decides what the images and labels are (source, split, class
            list, resizing, ...), as plain JSON values: recorded with every run, and compared.
    """

    class_names: tuple[str, ...]
    names: tuple[str, ...]
    targets: Bool[np.ndarray, "image class"]
    image_size: tuple[int, int]
    description: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def __getitem__(self, index: int) -> Tensor:
        """Image `index` as float32 (channel, height, width) in [0, 1].

        Raises:
            ImageError: if it is missing, truncated or not an image.
        """
