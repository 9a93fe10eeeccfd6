"""How a photo becomes the model's input, and photos that cannot be read."""

import io
import json
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from patchdemux.data import (
    ImageError,
    Preprocessing,
    read_image,
)
from photo_files import (
    SIZE,
    encoded,
    photo,
    pixels,
    write,
)


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
