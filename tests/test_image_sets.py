"""Descriptions, early checks, parts of sets, and opening what a person typed."""

import json

import pytest
import torch

from patchdemux.data import (
    ImageError,
    Preprocessing,
    TensorSet,
    check_images,
    coco,
    every,
    folder,
    limit,
    open_dataset,
    subset,
    without,
)
from photo_files import COLUMNS, LISTS, PHOTOS, SIZE, TRUTH, labels_of, write, zipped


def test_descriptions_are_json_and_hold_all_choices(photos, coco_root):
    base = folder(photos, SIZE).description
    assert json.loads(json.dumps(base)) == base
    assert folder(photos, SIZE).description == base
    others = [
        folder(photos, 8),
        folder(photos, Preprocessing(SIZE, mode="crop")),
        folder(photos, SIZE, classes=["traffic light", "cat"]),
        folder(photos, SIZE, keep_empty=False),
    ]
    write(photos / "labels.csv", COLUMNS.replace("0,1", "1,1"))
    others.append(folder(photos, SIZE))
    assert all(other.description != base for other in others)
    file = coco_root / "annotations/instances_val2017.json"
    assert coco(coco_root / "val2017", file, 8).description["labels"] == "instances_val2017.json"


@pytest.mark.parametrize("deep", [False, True])
def test_missing_photos_are_found_early(photos, deep):
    dataset = folder(photos, SIZE)
    assert check_images(dataset, deep=deep) == []
    (photos / "b.jpg").unlink()
    write(photos / "sub/c.jpg", b"")
    seen = []
    found = check_images(dataset, "skip", deep=deep, progress=lambda *step: seen.append(step))
    assert found == [
        ("b.jpg", f"cannot read image {photos}/b.jpg: the file is missing"),
        ("sub/c.jpg", f"cannot read image {photos}/sub/c.jpg: the file is empty"),
    ]
    assert seen[-1] == (3, 3)
    with pytest.raises(ImageError, match=r"b\.jpg: the file is missing \(2 of the 3 images checke"):
        check_images(dataset, deep=deep)
    rest = without(dataset, [name for name, _ in found])
    assert check_images(rest, deep=deep) == []
    assert rest.names == ("a.png",)


def test_broken_photos_need_a_deep_check(photos):
    write(photos / "a.png", PHOTOS["a.png"][:-60])
    dataset = folder(photos, SIZE)
    assert check_images(dataset) == []
    [(name, reason)] = check_images(dataset, "skip", deep=True, workers=1)
    assert name == "a.png"
    assert "a.png: it is truncated or damaged" in reason
    with pytest.raises(ImageError, match=r"a\.png: it is truncated or damaged .*\)$"):
        check_images(dataset, deep=True)
    with pytest.raises(ValueError, match="on_error must be 'stop' or 'skip', but got 'no'"):
        check_images(dataset, "no")
    with pytest.raises(ValueError, match="workers must be at least 1, but got 0"):
        check_images(dataset, workers=0)


def tensor_set(count=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, *SIZE, generator=random)
    targets = (torch.rand(count, 2, generator=random) < 0.5).int()
    return TensorSet(images, targets, ["cat", "dog"], "toys")


def test_tensors():
    dataset = tensor_set()
    assert len(dataset) == 6
    assert dataset.names[:2] == ("toys 0", "toys 1")
    assert dataset.targets.dtype == bool
    assert dataset.image_size == SIZE
    assert torch.equal(dataset[5], dataset.images[5])
    with pytest.raises(IndexError):
        dataset[6]
    assert dataset.description == tensor_set().description != tensor_set(seed=1).description
    assert json.loads(json.dumps(dataset.description)) == dataset.description
    assert check_images(dataset) == check_images(dataset, deep=True) == []


@pytest.mark.parametrize(
    ("images", "targets", "error", "message"),
    [
        (torch.zeros(3, 8, 8), [[0]], ValueError, r"\(image, channel, height, width\).*\(3, 8, 8"),
        (torch.zeros(0, 3, 8, 8), [[0]], ValueError, "without empty dimensions"),
        (torch.zeros(1, 3, 8, 8).byte(), [[0]], TypeError, "torch.uint8; divide bytes by 255"),
        (torch.full((1, 3, 8, 8), 2.0), [[0]], ValueError, r"all pixels within \[0, 1\]"),
        (torch.full((1, 3, 8, 8), torch.nan), [[0]], ValueError, r"all pixels within \[0, 1\]"),
        (torch.zeros(1, 3, 8, 8), [[0, 1]], ValueError, r"targets must have one 0 or 1"),
    ],
)
def test_wrong_tensors(images, targets, error, message):
    with pytest.raises(error, match=message):
        TensorSet(images, targets, ["cat"], "toys")


def test_parts_of_a_set():
    whole = tensor_set()
    some = subset(whole, [4, 1])
    assert some.names == ("toys 4", "toys 1")
    assert torch.equal(some[0], whole[4])
    assert (some.targets == whole.targets[[4, 1]]).all()
    assert every(whole, 4).names == ("toys 0", "toys 4")
    assert limit(whole, 2).names == ("toys 0", "toys 1")
    assert without(whole, {"toys 3", "toys 0"}).names == ("toys 1", "toys 2", "toys 4", "toys 5")
    nested = limit(every(whole, 2), 2)
    assert nested.names == ("toys 0", "toys 2")
    assert nested.description["selections"] == [{"every": 2}, {"first": 2}]
    assert nested.description["images"] == 2
    assert whole.description["images"] == 6
    left_out = without(whole, {"toys 3", "toys 0"}).description["selections"]
    assert left_out == [{"left_out": ["toys 0", "toys 3"]}]
    assert subset(whole, [1, 4]).description != some.description


def test_choosing_everything_changes_nothing():
    whole = tensor_set()
    assert limit(whole, 6) is every(whole, 1) is without(whole, []) is whole


def test_wrong_parts():
    whole = tensor_set()
    with pytest.raises(ValueError, match="no image is left of 6 with the selection"):
        without(whole, whole.names)
    with pytest.raises(ValueError, match="there is no image 'x' in the data set to leave out"):
        without(whole, ["x"])
    with pytest.raises(IndexError, match="there is no image 6 in a data set of 6 images"):
        subset(whole, [6])
    with pytest.raises(ValueError, match="image 2 is chosen twice"):
        subset(whole, [2, 2])
    with pytest.raises(ValueError, match="count must be at least 1, but got 0"):
        limit(whole, 0)
    with pytest.raises(ValueError, match="step must be at least 1, but got 0"):
        every(whole, 0)


def test_open_folder_zip_and_labels_elsewhere(photos, tmp_path):
    assert open_dataset(photos, SIZE).description == folder(photos, SIZE).description
    path = zipped(tmp_path / "set.zip", {**PHOTOS, "labels.csv": COLUMNS})
    assert labels_of(open_dataset(str(path), SIZE)) == TRUTH
    other = write(tmp_path / "other.csv", LISTS)
    assert labels_of(open_dataset(photos, SIZE, labels=other)) == TRUTH
    assert len(open_dataset(photos, SIZE, keep_empty=False)) == 2


def test_open_coco(coco_root):
    dataset = open_dataset(coco_root, SIZE)
    assert dataset.names == ("1.jpg", "3.jpg")
    assert check_images(dataset) == []
    file = coco_root / "annotations/instances_val2017.json"
    for place in (coco_root, coco_root / "val2017"):
        same = open_dataset(place, SIZE, annotations=file)
        assert same.description == dataset.description
        assert check_images(same) == []
    write(file.with_name("instances_train2017.json"), file.read_bytes())
    with pytest.raises(ValueError, match="say with `split` which one; it has: train2017, val2017"):
        open_dataset(coco_root, SIZE)
    assert open_dataset(coco_root, SIZE, split="val2017").description == dataset.description
    with pytest.raises(ValueError, match="has no split 'test'; it has: train2017, val2017"):
        open_dataset(coco_root, SIZE, split="test")
    with pytest.raises(ValueError, match="the option `year` does not apply to COCO, only"):
        open_dataset(coco_root, SIZE, year=2017)


def test_open_voc(devkit):
    dataset = open_dataset(devkit, SIZE)
    assert dataset.description["labels"] == "VOC2007 test"
    assert check_images(dataset, deep=True) == []
    assert open_dataset(devkit.parent, SIZE, year=2007).description == dataset.description
    assert len(open_dataset(devkit, SIZE, difficult=False)) == 1
    write(devkit / "VOC2007/ImageSets/Main/trainval.txt", "000001\n")
    with pytest.raises(ValueError, match="say with `split` which one; it has: test, trainval"):
        open_dataset(devkit, SIZE)
    with pytest.raises(ValueError, match="has no year '2012'; it has: 2007"):
        open_dataset(devkit, SIZE, year=2012)
    assert len(open_dataset(devkit, SIZE, split="trainval")) == 1


def test_open_digits():
    pytest.importorskip("sklearn", reason="digit scenes need scikit-learn")
    dataset = open_dataset("digits:3")
    assert len(dataset) == 3
    assert dataset.class_names == tuple("0123456789")
    assert open_dataset("digits:3", dataset.image_size).description == dataset.description
    assert open_dataset("digits:3", split="train").description != dataset.description
    with pytest.raises(ValueError, match=r"digit scenes are .* pixels and cannot be made 8 x 8"):
        open_dataset("digits:3", 8)
    with pytest.raises(ValueError, match="'digits:many': after the colon comes a number of scenes"):
        open_dataset("digits:many")
    with pytest.raises(ValueError, match="the option `year` does not apply to digit scenes"):
        open_dataset("digits", year=2007)


def test_open_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder or zip .*nowhere, and"):
        open_dataset(tmp_path / "nowhere", SIZE)
    with pytest.raises(FileNotFoundError, match=r"found no data set in .*looked for: labels\.csv"):
        open_dataset(tmp_path, SIZE)
    with pytest.raises(ValueError, match="photos need `size`"):
        open_dataset(tmp_path)
