"""Readers on real photos: MS-COCO in two layouts. Skipped where ../shared/data is absent."""

import csv
import io
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from patchdemux.data import Preprocessing, check_images, every, limit, open_dataset
from patchdemux.data.coco import CLASS_NAMES

DATA = Path(
    os.environ.get("PATCHDEMUX_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data"
)


def needed(name):
    """The path of real data, or a skipped test."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs real data: there is no {path}")
    return path


@pytest.fixture
def full_size():
    return needed("coco-val2017-80")


def test_labels_of_coco_counted_another_way(full_size):
    """From the text of the file, without a JSON parser: image and category of every annotation."""
    dataset = open_dataset(full_size, 448)
    text = (full_size / "instances_val2017.json").read_text()
    pairs = re.findall(
        r'"image_id":\s*(\d+),\s*"bbox":\s*\[[^]]*\],\s*"category_id":\s*(\d+)', text
    )
    tables = json.loads(text)
    assert len(pairs) == len(tables["annotations"]) == 815
    category = {entry["id"]: entry["name"] for entry in tables["categories"]}
    expected = {(f"{int(image):012}.jpg", category[int(kind)]) for image, kind in pairs}
    found = {
        (dataset.names[image], dataset.class_names[label])
        for image, label in np.argwhere(dataset.targets)
    }
    assert found == expected
    assert len(dataset) == 80
    assert len(dataset.class_names) == 80
    assert dataset.class_names == CLASS_NAMES
    assert list(dataset.names) == sorted(path.name for path in (full_size / "val2017").iterdir())


def test_every_full_size_photo_can_be_read(full_size):
    dataset = open_dataset(full_size, 224)
    assert check_images(dataset) == []
    assert check_images(every(dataset, 3), deep=True) == []


@pytest.mark.parametrize("mode", ["squash", "crop"])
def test_preprocessing_agrees_with_torchvision(full_size, mode):
    transforms = pytest.importorskip("torchvision.transforms", reason="needs torchvision")
    from PIL import Image

    resize = {
        "squash": [transforms.Resize((448, 448))],
        "crop": [transforms.Resize(448), transforms.CenterCrop(448)],
    }[mode]
    theirs = transforms.Compose([*resize, transforms.ToTensor()])
    dataset = limit(open_dataset(full_size, Preprocessing(448, mode=mode)), 10)
    for index, name in enumerate(dataset.names):
        with Image.open(full_size / "val2017" / name) as image:
            assert torch.equal(dataset[index], theirs(image.convert("RGB")))


def test_zip_against_its_csv():
    path = needed("coco2014-val-224.zip")
    dataset = open_dataset(path, 224)
    with zipfile.ZipFile(path) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("labels.csv").decode())))
        members = set(archive.namelist())
    assert len(dataset) == len(rows) == 2000
    assert dataset.names == tuple(row["file"] for row in rows)
    assert members == {*dataset.names, "labels.csv"}
    for row, targets in zip(rows, dataset.targets, strict=True):
        assert [row[name] == "1" for name in dataset.class_names] == targets.tolist()
    assert check_images(dataset) == []
    assert check_images(every(dataset, 20), deep=True) == []


def test_both_readers_name_the_same_classes(full_size):
    zipped = open_dataset(needed("coco2014-val-224.zip"), 224)
    assert zipped.class_names == open_dataset(full_size, 224).class_names


def test_the_shipped_classifier_names_what_photos_show():
    """Mean average precision on 100 photos of the validation split, far above chance (about 4%)."""
    from sklearn.metrics import average_precision_score

    from patchdemux.models import load

    dataset = limit(open_dataset(needed("coco2014-val-224.zip"), 224), 100)
    images = torch.stack([dataset[i] for i in range(len(dataset))])
    with torch.inference_mode():
        scores = load("coco")(images).numpy()
    shown = dataset.targets.any(axis=0)
    mean = average_precision_score(dataset.targets[:, shown], scores[:, shown], average="macro")
    assert mean > 0.5
