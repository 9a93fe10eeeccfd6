"""MS-COCO and PASCAL VOC layouts: labels, order, and every wrong file named."""

import json
import zipfile

import pytest
import torch

from patchdemux.data import (
    Preprocessing,
    check_images,
    coco,
    voc,
)
from photo_files import CLASSES, LABELS, SIZE, coco_tables, labels_of, photo, voc_xml, write


def test_coco(coco_root):
    file = coco_root / "annotations/instances_val2017.json"
    dataset = coco(coco_root / "val2017", file, SIZE)
    assert dataset.class_names == CLASSES
    assert dataset.names == ("1.jpg", "3.jpg")
    assert labels_of(dataset) == {name: found for name, found in LABELS.items() if found}
    assert dataset.targets.dtype == bool
    assert dataset.image_size == SIZE
    assert torch.equal(dataset[1], Preprocessing(SIZE)(photo(3), "3.jpg"))
    assert dataset.description["empty_left_out"] == 1
    everything = coco(coco_root / "val2017", file, SIZE, keep_empty=True)
    assert everything.names == ("1.jpg", "2.jpg", "3.jpg")
    assert labels_of(everything) == LABELS
    assert check_images(everything, deep=True) == []


def test_coco_photos_in_a_zip(coco_root):
    path = coco_root / "val2017.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in (1, 2, 3):
            archive.writestr(f"val2017/{number}.jpg", photo(number))
    dataset = coco(path, coco_root / "annotations/instances_val2017.json", SIZE)
    assert torch.equal(dataset[1], Preprocessing(SIZE)(photo(3), "3.jpg"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("categories"), r"instances.json has no list 'categories'; expected COCO"),
        (lambda t: t["images"][1].pop("file_name"), "entry 1 of 'images' has no 'file_name' of ty"),
        (lambda t: t["images"].append({"id": 1, "file_name": "x.jpg"}), "id 1 occurs twice in 'im"),
        (lambda t: t["images"].append({"id": 9, "file_name": "1.jpg"}), "file_name '1.jpg' occurs"),
        (lambda t: t["categories"].append({"id": 9, "name": "dog"}), "name 'dog' occurs twice in"),
        (lambda t: t["annotations"][0].update(image_id=5), "annotation 10 refers to image 5, whic"),
        (lambda t: t["annotations"][3].update(category_id=1), "annotation 13 refers to category 1"),
        (lambda t: t["annotations"].clear(), "is empty: all 3 images are without objects in inst"),
        (lambda t: t.update(images=[], annotations=[]), "is empty: no images in instances.json"),
        (lambda t: t["images"][0].update(file_name="../x"), "'../x' is not a file name within"),
    ],
)
def test_wrong_coco_annotations(tmp_path, change, message):
    tables = json.loads(json.dumps(coco_tables()))
    change(tables)
    file = write(tmp_path / "instances.json", json.dumps(tables))
    with pytest.raises(ValueError, match=message):
        coco(tmp_path, file, SIZE)


def test_missing_coco_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.json \(COCO annotations,"):
        coco(tmp_path, tmp_path / "x.json", SIZE)
    with pytest.raises(ValueError, match=r"y\.json is not a JSON file, or a damaged one"):
        coco(tmp_path, write(tmp_path / "y.json", "{"), SIZE)
    file = write(tmp_path / "z.json", json.dumps(coco_tables()))
    with pytest.raises(FileNotFoundError, match=r"there is no folder or zip .*photos"):
        coco(tmp_path / "photos", file, SIZE)
    with pytest.raises(ValueError, match=r"z\.json is neither a folder nor a zip"):
        coco(file, file, SIZE)


def test_voc(devkit):
    dataset = voc(devkit, SIZE, year=2007, split="test")
    assert len(dataset.class_names) == 20
    assert list(dataset.class_names) == sorted(dataset.class_names)
    assert dataset.names == ("000002.jpg", "000001.jpg")
    assert labels_of(dataset) == {"000002.jpg": {"tvmonitor"}, "000001.jpg": {"cat", "person"}}
    assert torch.equal(dataset[0], Preprocessing(SIZE)(photo(2), "2"))
    easy = voc(devkit.parent, SIZE, year="2007", split="test", difficult=False)
    assert labels_of(easy) == {"000001.jpg": {"cat"}}
    assert easy.description["empty_left_out"] == 1
    assert easy.description["difficult"] is False
    kept = voc(devkit, SIZE, year=2007, split="test", difficult=False, keep_empty=True)
    assert labels_of(kept) == {"000002.jpg": set(), "000001.jpg": {"cat"}}


def test_wrong_voc_folders(devkit):
    with pytest.raises(FileNotFoundError, match=r"no PASCAL VOC 2012 in .*: looked for the fold"):
        voc(devkit, SIZE, year=2012, split="val")
    with pytest.raises(FileNotFoundError, match=r"no split 'val': there is no file .*; it has: te"):
        voc(devkit, SIZE, year=2007, split="val")
    with pytest.raises(ValueError, match=r"cat_test\.txt: '000002 -1' is not the name of one phot"):
        voc(devkit, SIZE, year=2007, split="cat_test")
    listing = devkit / "VOC2007/ImageSets/Main/test.txt"
    write(listing, "000001\n000003\n")
    with pytest.raises(FileNotFoundError, match=r"000003\.xml \(the annotation of image 000003 of"):
        voc(devkit, SIZE, year=2007, split="test")
    write(listing, "000001\n000001\n")
    with pytest.raises(ValueError, match=r"test\.txt: image 000001 is listed twice"):
        voc(devkit, SIZE, year=2007, split="test")
    write(listing, "\n")
    with pytest.raises(ValueError, match="the data set is empty: no images in VOC2007 test"):
        voc(devkit, SIZE, year=2007, split="test")


BOMB = '<!DOCTYPE a [<!ENTITY b "cat"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (voc_xml(("unicorn", 0)), "'unicorn' is not one of the 20 classes of PASCAL VOC"),
        (voc_xml(("cat", "x")), "'difficult' of a cat must be 0 or 1, but is 'x'"),
        ("<annotation><object>", "is not an XML file, or a damaged one"),
        (BOMB, "declares a DOCTYPE"),
        (BOMB.encode("utf-16"), "declares a DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "http://localhost/a.dtd"><annotation/>', "declares a DOCTYPE"),
    ],
)
def test_wrong_voc_annotations(devkit, content, message):
    write(devkit / "VOC2007/Annotations/000001.xml", content)
    with pytest.raises(ValueError, match=rf"000001\.xml.*{message}"):
        voc(devkit, SIZE, year=2007, split="test")
