"""Tiny photos in every layout of data set, for the tests of the readers."""

import io
import zipfile

import numpy as np
from PIL import Image

SIZE = (8, 12)


def photo(seed=0, size=(20, 30), mode="RGB", form="JPEG", **options):
    """The bytes of a small photo of random blocks."""
    random = np.random.default_rng(seed)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    blocks = random.integers(0, 256, (*(side // 5 for side in size), *channels), np.uint8)
    pixels = blocks.repeat(5, axis=0).repeat(5, axis=1)
    return encoded(Image.fromarray(pixels, mode), form, **options)


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pixels(image):
    """A tensor's pixels as bytes (height, width, channel)."""
    return (image * 255).round().byte().permute(1, 2, 0).numpy()


CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 2, "name": "person"}, {"id": 3, "name": "car"}]
CLASSES = ("person", "car", "dog")
LABELS = {"1.jpg": {"dog"}, "2.jpg": set(), "3.jpg": {"person", "car"}}


def coco_tables():
    return {
        "images": [{"id": number, "file_name": f"{number}.jpg"} for number in (3, 1, 2)],
        "categories": CATEGORIES,
        "annotations": [
            {"id": 10, "image_id": 3, "category_id": 2, "segmentation": [[1.0, 2.0]]},
            {"id": 11, "image_id": 3, "category_id": 3, "iscrowd": 1},
            {"id": 12, "image_id": 3, "category_id": 2, "iscrowd": 0},
            {"id": 13, "image_id": 1, "category_id": 7, "iscrowd": 0},
        ],
    }


def labels_of(dataset):
    """The class names of every image."""
    return {
        name: {dataset.class_names[place] for place in np.flatnonzero(row)}
        for name, row in zip(dataset.names, dataset.targets, strict=True)
    }


def voc_xml(*objects):
    boxes = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult>"
        f"<part><name>head</name></part></object>"
        for name, hard in objects
    )
    return f"<annotation><filename>x</filename>{boxes}</annotation>"


COLUMNS = "file,cat,traffic light\nb.jpg,0,1\na.png,1,1\n\nsub/c.jpg,0,0\n"
LISTS = "file,labels\nb.jpg,traffic light\na.png,cat|traffic light\nsub/c.jpg,\n"
TRUTH = {"b.jpg": {"traffic light"}, "a.png": {"cat", "traffic light"}, "sub/c.jpg": set()}
PHOTOS = {"b.jpg": photo(1), "a.png": photo(2, form="PNG"), "sub/c.jpg": photo(3)}


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
