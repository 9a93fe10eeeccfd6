"""Folders and zips of photos with a CSV."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from patchdemux.data import (
    ImageError,
    Preprocessing,
    check_images,
    folder,
)
from patchdemux.data.files import ZipFiles
from photo_files import COLUMNS, LISTS, PHOTOS, SIZE, TRUTH, labels_of, photo, write, zipped


@pytest.mark.parametrize(
    "text",
    [
        COLUMNS,
        "\ufeff" + COLUMNS.replace("\n", "\r\n"),
        LISTS,
        LISTS.replace("|", " ; "),
        'file,labels\nb.jpg,traffic light\na.png,"traffic light, cat"\nsub/c.jpg,""\n',
    ],
)
def test_folder(photos, text):
    write(photos / "labels.csv", text)
    dataset = folder(photos, SIZE)
    assert labels_of(dataset) == TRUTH
    assert dataset.names == tuple(TRUTH)
    assert dataset.class_names == ("cat", "traffic light")
    for index, content in enumerate(PHOTOS.values()):
        assert torch.equal(dataset[index], Preprocessing(SIZE)(content, "a"))
    full = folder(photos, SIZE, keep_empty=False)
    assert full.names == ("b.jpg", "a.png")
    assert full.description["empty_left_out"] == 1
    with pytest.raises(IndexError):
        dataset[3]


@pytest.mark.parametrize("text", [COLUMNS, LISTS])
def test_an_explicit_class_list_decides_the_order(photos, text):
    write(photos / "labels.csv", text)
    classes = ["traffic light", "cat"]
    dataset = folder(photos, SIZE, classes=classes)
    assert dataset.class_names == tuple(classes)
    assert labels_of(dataset) == TRUTH


def test_labels_that_lie_elsewhere(photos, tmp_path):
    elsewhere = write(tmp_path / "labels/mine.csv", COLUMNS)
    (photos / "labels.csv").unlink()
    assert labels_of(folder(photos, SIZE, labels=elsewhere)) == TRUTH
    path = zipped(tmp_path / "photos.zip", {f"top/{name}": photo() for name in PHOTOS})
    dataset = folder(path, SIZE, labels=elsewhere)
    assert dataset[0].shape == (3, *SIZE)
    with pytest.raises(FileNotFoundError, match=r"there is no file labels\.csv with the labels in"):
        folder(photos, SIZE)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("name,cat\na,1\n", {}, r"labels\.csv must have .* must be 'file', but it begins with 'na"),
        ("", {}, "must be 'file', but it begins with ''"),
        ("file\na.png\n", {}, "has no columns after 'file'"),
        ("file,cat,\na,1,1\n", {}, "column 3 has no name"),
        ("file,cat,cat\na,1,1\n", {}, "has two columns named 'cat'"),
        ("file,cat,dog\n", {}, "the data set is empty: no images in"),
        ("file,cat,dog\na,1\n", {}, "line 2: 2 cells, but the header has 3"),
        ("file,cat,dog\na,1,0\nb,1,2\n", {}, r"line 3 \(b\), column 'dog': must be 0 or 1, but is"),
        ("file,cat,dog\na,1,\n", {}, r"line 2 \(a\), column 'dog': must be 0 or 1, but is ''"),
        ("file,tags\na,cat|dog\n", {}, "but is 'cat|dog'; a column of label lists must be named"),
        ("file,cat\na,1\nb,1\na,0\n", {}, "a is listed twice, in lines 2, 4"),
        ("file,cat\n,1\n", {}, "line 2: '' is not a file name within the folder"),
        ("file,cat\n/etc/a,1\n", {}, "'/etc/a' is not a file name within the folder of images"),
        ("file,cat\n../a,1\n", {}, "'../a' is not a file name within the folder of images"),
        ('file,cat\n"a,1\n', {}, "not a CSV file"),
        (b"file,cat\n\xff,1\n", {}, "is not UTF-8 text"),
        ("file,cat,dog\na,1,0\n", {"classes": ["cat"]}, "column 'dog' is not in the list of class"),
        ("file,cat\na,1\n", {"classes": ["cat", "dog"]}, "has no column for the class 'dog'"),
        ("file,labels\na,cat|dog\n", {"classes": ["cat"]}, r"line 2 \(a\): label 'dog' is not in"),
        ("file,labels\na,cat dog\n", {"classes": ["cat", "dog"]}, "to be separated by '|'"),
        ("file,labels\na,x|y;z\n", {}, r"separated by '\|' or ';'; say which with `separator`"),
        ("file,labels\na,\n", {}, "no image has a label, so there are no classes"),
        ("file,cat\na,0\n", {"keep_empty": False}, "all 1 images are without objects"),
        ("file,labels\na,x\n", {"classes": ["x", "x"]}, "the class 'x' occurs twice in the list o"),
    ],
)
def test_wrong_csv(tmp_path, text, options, message):
    write(tmp_path / "labels.csv", text)
    with pytest.raises(ValueError, match=message):
        folder(tmp_path, SIZE, **options)


def test_a_separator_of_ones_own(tmp_path):
    write(tmp_path / "labels.csv", "file,labels\na,cat dog\nb,dog|x\n")
    dataset = folder(tmp_path, SIZE, separator=" ")
    assert dataset.class_names == ("cat", "dog", "dog|x")


@pytest.mark.parametrize("top", ["", "some/folder/"])
def test_zip(tmp_path, top):
    files = {f"{top}{name}": content for name, content in PHOTOS.items()}
    path = zipped(tmp_path / "set.zip", {**files, f"{top}labels.csv": COLUMNS, "__MACOSX/x": "x"})
    dataset = folder(path, SIZE)
    assert labels_of(dataset) == TRUTH
    plain = [Preprocessing(SIZE)(content, "a") for content in PHOTOS.values()]
    assert all(torch.equal(dataset[index], image) for index, image in enumerate(plain))
    with ThreadPoolExecutor(6) as pool:
        images = list(pool.map(lambda turn: dataset[turn % 3], range(90)))
    assert all(torch.equal(image, plain[turn % 3]) for turn, image in enumerate(images))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[2], plain[2])
    assert copy.description == dataset.description
    assert check_images(dataset, deep=True) == []


def test_a_forked_process_opens_the_zip_for_itself(tmp_path, monkeypatch):
    files = ZipFiles(zipped(tmp_path / "set.zip", PHOTOS))
    content = files.read("b.jpg")
    before = files._archive()
    assert files._archive() is before
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert files._archive() is not before
    assert files.read("b.jpg") == content


def test_damaged_zips(tmp_path):
    path = zipped(
        tmp_path / "set.zip", {**PHOTOS, "labels.csv": COLUMNS.replace("b.jpg", "gone.jpg")}
    )
    dataset = folder(path, SIZE)
    reason = f"cannot read image {path}/gone.jpg: the file is missing"
    assert check_images(dataset, "skip") == [("gone.jpg", reason)]
    with pytest.raises(ImageError, match=r"gone\.jpg: the file is missing"):
        dataset[0]
    content = bytearray(path.read_bytes())
    content[ZipFiles(path).entries["a.png"].header_offset + 60] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(ImageError, match=r"a\.png: the zip is damaged here"):
        folder(path, SIZE)[1]
    path.write_bytes(bytes(content[:200]))
    with pytest.raises(ValueError, match=r"set\.zip is neither a folder nor a zip"):
        folder(path, SIZE)
    with pytest.raises(ValueError, match=r"set\.zip is not a zip, or a damaged one"):
        ZipFiles(path)


def test_ambiguous_zips(tmp_path):
    path = zipped(tmp_path / "set.zip", {"x/labels.csv": COLUMNS, "y/labels.csv": COLUMNS})
    with pytest.raises(ValueError, match=r"holds labels\.csv in several folders.*: x/, y/"):
        folder(path, SIZE)


def test_a_changed_photo_in_a_zip_changes_the_description(tmp_path):
    def description(files):
        return folder(zipped(tmp_path / "set.zip", files), SIZE).description

    files = {**PHOTOS, "labels.csv": COLUMNS}
    assert description(files) == description(dict(reversed(files.items())))
    assert description(files) == description({**files, "unlisted.jpg": photo()})
    assert description(files) != description({**files, "b.jpg": photo(9)})
