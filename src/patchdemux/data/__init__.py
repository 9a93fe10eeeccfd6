"""Datasets: images with multi-label targets."""

from patchdemux.data.base import ImageError, ImageSet
from patchdemux.data.checks import check_images
from patchdemux.data.coco import coco
from patchdemux.data.folder import folder
from patchdemux.data.open import open_dataset
from patchdemux.data.photos import PhotoSet
from patchdemux.data.preprocess import Preprocessing, read_image
from patchdemux.data.tensors import TensorSet
from patchdemux.data.views import Subset, every, limit, subset, without
from patchdemux.data.voc import voc

__all__ = [
    "ImageError",
    "ImageSet",
    "PhotoSet",
    "Preprocessing",
    "Subset",
    "TensorSet",
    "check_images",
    "coco",
    "every",
    "folder",
    "limit",
    "open_dataset",
    "read_image",
    "subset",
    "voc",
    "without",
]
