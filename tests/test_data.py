"""Readers of data sets, on tiny photos in every layout; broken photos and labels, and what is said."""

import io
import json
import pickle
import sys
import threading
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

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
    read_image,
    subset,
    voc,
    without,
)
from patchdemux.data.files import ZipFiles

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


# --- preprocessing


def test_squash_is_pillows_antialiased_bilinear():
    content = photo()
    image = Preprocessing(SIZE)(content, "a.jpg")
    expected = Image.open(io.BytesIO(content)).resize(SIZE[::-1], Image.Resampling.BILINEAR)
    assert image.dtype == torch.float32
    assert image.shape == (3, *SIZE)
    assert image.is_contiguous()
    assert torch.equal(image, torch.from_numpy(np.array(expected)).permute(2, 0, 1) / 255)


def test_a_photo_of_the_right_size_is_unchanged():
    content = photo(form="PNG")
    assert (pixels(Preprocessing((20, 30))(content, "a")) == Image.open(io.BytesIO(content))).all()


@pytest.mark.parametrize("mode", ["squash", "crop", "letterbox"])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos", "box", "nearest"])
@pytest.mark.parametrize("shape", [(40, 5), (5, 40), (20, 20), (8, 12)])
def test_every_choice_gives_the_size(mode, filter, shape):
    content = photo(size=shape)
    assert Preprocessing(SIZE, mode=mode, filter=filter)(content, "a").shape == (3, *SIZE)


def test_crop_keeps_the_middle():
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    image = Preprocessing(10, mode="crop")(encoded(Image.fromarray(wide)), "a.png")
    assert (image == 1).all()
    tall = encoded(Image.fromarray(wide.transpose(1, 0, 2)))
    assert (Preprocessing(10, mode="crop")(tall, "a.png") == 1).all()


def test_letterbox_keeps_the_shape_and_fills_the_rest():
    white = encoded(Image.new("RGB", (40, 20), "white"))
    image = Preprocessing(20, mode="letterbox", fill=0.2)(white, "a.png")
    assert (image[:, 5:15] == 1).all()
    assert (pixels(image[:, :5]) == 51).all()
    assert (pixels(image[:, 15:]) == 51).all()


def test_all_kinds_of_photos_become_rgb():
    to_rgb = Preprocessing(10)
    gray = Image.new("L", (10, 10), 100)
    assert (pixels(to_rgb(encoded(gray), "a")) == 100).all()
    assert (pixels(to_rgb(encoded(gray.convert("P")), "a")) == 100).all()
    assert np.unique(pixels(to_rgb(encoded(gray.convert("1")), "a"))).tolist() == [0, 255]
    cmyk = encoded(Image.new("CMYK", (10, 10), (255, 0, 0, 0)), "JPEG")
    assert np.abs(pixels(to_rgb(cmyk, "a"))[0, 0].astype(int) - (0, 255, 255)).max() <= 2
    wide = Image.fromarray(np.full((10, 10), 0x8080, np.uint16))
    assert (pixels(to_rgb(encoded(wide), "a")) == 0x80).all()
    red = Image.new("RGBA", (10, 10), (255, 0, 0, 255))
    red.putpixel((0, 0), (255, 0, 0, 0))
    assert pixels(to_rgb(encoded(red), "a"))[:2, 0].tolist() == [[128] * 3, [255, 0, 0]]
    palette = Image.new("P", (10, 10), 0)
    palette.putpalette([0, 255, 0, 9, 9, 9])
    content = encoded(palette, transparency=b"\x00\xff")
    assert pixels(to_rgb(content, "a"))[0, 0].tolist() == [128] * 3
    frames = [Image.new("RGB", (10, 10), color) for color in ("red", "blue")]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(to_rgb(moving, "a"))[0, 0].tolist() == [255, 0, 0]


def test_unknown_ranges_are_refused():
    floats = encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    with pytest.raises(ImageError, match=r"a\.tif: pixels of Pillow's mode F have no known range"):
        Preprocessing(4)(floats, "a.tif")


def test_exif_rotation_is_a_recorded_choice():
    image = Image.new("RGB", (20, 10), "white")
    image.paste("black", (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    content = encoded(image, "PNG", exif=exif)
    as_stored = Preprocessing((10, 20))
    upright = Preprocessing((20, 10), exif_rotation=True)
    assert (as_stored(content, "a")[:, :, :10] == 0).all()
    assert (upright(content, "a")[:, :10] == 0).all()
    assert as_stored.description["exif_rotation"] is False
    assert upright.description["exif_rotation"] is True


def test_preprocessing_is_a_value():
    assert Preprocessing(8) == Preprocessing((8, 8)) != Preprocessing(8, mode="crop")
    description = Preprocessing(SIZE, filter="box").description
    assert json.loads(json.dumps(description)) == description
    assert description["size"] == [8, 12]
    with pytest.raises(ValueError, match="mode must be one of squash, crop, letterbox, but got 'x"):
        Preprocessing(8, mode="x")
    with pytest.raises(ValueError, match=r"filter must be one of bilinear, .*, but got 'hamming'"):
        Preprocessing(8, filter="hamming")
    with pytest.raises(ValueError, match="fill must be a gray within"):
        Preprocessing(8, fill=128)


# --- photos that cannot be read


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_every_truncation_is_noticed(form):
    options = {"progressive": True} if form == "JPEG" else {}
    content = photo(form=form, **options)
    whole = Preprocessing(SIZE)(content, "whole")
    for length in range(0, len(content) - 1, 7):
        read = None
        with suppress(ImageError):
            read = Preprocessing(SIZE)(content[:length], "short.jpg")
        assert read is None or torch.equal(read, whole)


def test_reasons_are_named(tmp_path):
    with pytest.raises(ImageError, match=r"cannot read image .*none\.jpg: the file is missing"):
        read_image(tmp_path / "none.jpg", 8)
    with pytest.raises(ImageError, match=r"empty\.jpg: the file is empty"):
        read_image(write(tmp_path / "empty.jpg", b""), 8)
    with pytest.raises(ImageError, match=r"text\.jpg: it is not an image"):
        read_image(write(tmp_path / "text.jpg", "no image"), 8)
    with pytest.raises(ImageError, match=r"half\.jpg: it is truncated or damaged \(OSError: image"):
        read_image(write(tmp_path / "half.jpg", photo(size=(90, 90))[:-400]), 8)
    with pytest.raises(ImageError, match=r"cannot read image .*: Is a directory"):
        read_image(tmp_path, 8)


def test_other_libraries_cannot_make_truncated_photos_pass(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    whole = photo(size=(90, 90))
    with pytest.raises(ImageError, match="truncated"):
        Preprocessing(8)(whole[:-400], "half.jpg")
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    start = threading.Barrier(8)

    def many(place):
        start.wait()
        refused = 0
        for _ in range(20):
            Preprocessing(8)(whole, "whole.jpg")
            try:
                Preprocessing(8)(whole[:-400], "half.jpg")
            except ImageError:
                refused += 1
        return refused

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(many, range(8))) == [20] * 8
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("share", [1.5, 3])  # Pillow warns of the first, and refuses the second
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_decompression_bombs_are_refused(monkeypatch, share, action):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(600 / share))
    message = r"a\.jpg: it is too large .*MAX_IMAGE_PIXELS"
    with warnings.catch_warnings(action=action), pytest.raises(ImageError, match=message):
        Preprocessing(8)(photo(), "a.jpg")


def test_long_and_thin_photos_do_not_fill_the_memory():
    thin = encoded(Image.new("L", (5000, 1)))
    assert Preprocessing(100, mode="letterbox")(thin, "a").shape == (3, 100, 100)
    with pytest.raises(ImageError, match="a: 5000 x 1 pixels are too long and thin to be cropped"):
        Preprocessing(100, mode="crop")(thin, "a")


def test_formats_that_start_other_programs_are_not_images():
    with pytest.raises(
        ImageError, match=r"a\.eps: it is not an image of a known format \(JPEG, PNG"
    ):
        Preprocessing(8)(encoded(Image.new("RGB", (4, 4)), "EPS"), "a.eps")


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"reading images needs Pillow: pip install 'patchdemux"):
        Preprocessing(8)(b"x", "a.jpg")


# --- COCO

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


@pytest.fixture
def coco_root(tmp_path):
    root = tmp_path / "coco"
    for number in (1, 2, 3):
        write(root / f"val2017/{number}.jpg", photo(number))
    write(root / "annotations/instances_val2017.json", json.dumps(coco_tables()))
    return root


def labels_of(dataset):
    """The class names of every image."""
    return {
        name: {dataset.class_names[place] for place in np.flatnonzero(row)}
        for name, row in zip(dataset.names, dataset.targets, strict=True)
    }


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


# --- PASCAL VOC


def voc_xml(*objects):
    boxes = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult>"
        f"<part><name>head</name></part></object>"
        for name, hard in objects
    )
    return f"<annotation><filename>x</filename>{boxes}</annotation>"


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


# --- CSV

COLUMNS = "file,cat,traffic light\nb.jpg,0,1\na.png,1,1\n\nsub/c.jpg,0,0\n"
LISTS = "file,labels\nb.jpg,traffic light\na.png,cat|traffic light\nsub/c.jpg,\n"
TRUTH = {"b.jpg": {"traffic light"}, "a.png": {"cat", "traffic light"}, "sub/c.jpg": set()}
PHOTOS = {"b.jpg": photo(1), "a.png": photo(2, form="PNG"), "sub/c.jpg": photo(3)}


@pytest.fixture
def photos(tmp_path):
    for name, content in PHOTOS.items():
        write(tmp_path / "photos" / name, content)
    write(tmp_path / "photos/labels.csv", COLUMNS)
    return tmp_path / "photos"


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


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


# --- zips


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


# --- descriptions, checks and parts


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


# --- opening what a person typed


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
