"""Shapes in signatures are checked at run time, in the tests only; and data sets on disk."""

import json
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from photo_files import COLUMNS, PHOTOS, coco_tables, photo, voc_xml, write

# `ScoreBounds`, `MaskSet` and `Goal` check the arrays they are given themselves, with texts that tests
# read.
ATTACK = [f"attack.{room}" for room in ("gradient", "places", "search", "universal", "victims")]
INSIDE = ["audit", "certify", "metrics", "engine", "defenses", "report", *ATTACK]
install_import_hook([f"patchdemux.{room}" for room in INSIDE], "typecheck.checked")

GOLDEN = Path(__file__).parent / "golden"
"""Figures of the published implementation, on data generated for the purpose."""

settings.register_profile("default", deadline=None)
settings.load_profile("default")


@pytest.fixture
def coco_root(tmp_path):
    root = tmp_path / "coco"
    for number in (1, 2, 3):
        write(root / f"val2017/{number}.jpg", photo(number))
    write(root / "annotations/instances_val2017.json", json.dumps(coco_tables()))
    return root


@pytest.fixture
def devkit(tmp_path):
    year = tmp_path / "VOCdevkit/VOC2007"
    write(year / "ImageSets/Main/test.txt", "000002\n000001\n")
    write(year / "ImageSets/Main/cat_test.txt", "000002 -1\n000001  1\n")
    write(year / "Annotations/000001.xml", voc_xml(("cat", 0), ("person", 1), ("cat", 0)))
    write(year / "Annotations/000002.xml", voc_xml(("tvmonitor", 1)))
    for number in (1, 2):
        write(year / f"JPEGImages/00000{number}.jpg", photo(number))
    return tmp_path / "VOCdevkit"


@pytest.fixture
def photos(tmp_path):
    for name, content in PHOTOS.items():
        write(tmp_path / "photos" / name, content)
    write(tmp_path / "photos/labels.csv", COLUMNS)
    return tmp_path / "photos"
