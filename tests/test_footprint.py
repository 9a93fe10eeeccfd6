"""The footprint of a patch on a photo, against what Pillow really does with changed pixels."""

import io
import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from PIL import Image

from patchdemux import DoubleMasking, Footprint, PatchDemux, PatchThreat, SourcePatch
from patchdemux.data import ImageError, TensorSet, folder, subset
from patchdemux.data.decode import decode, photo_size
from patchdemux.data.preprocess import FILTERS, MODES, Preprocessing
from patchdemux.data.sizes import sizes_in
from patchdemux.footprint import SAMPLING, reached, recompressed_spans, resized_spans
from patchdemux.report.facts import caveats
from patchdemux.runs import RunError, evaluate
from photo_files import encoded, photo, write

sides = st.integers(1, 60)
QUALITIES = (20, 75, 95, 100)


def contents(rng, height, width):
    """What an attacker may paint: black, white, anything."""
    yield np.zeros((height, width, 3), np.uint8)
    yield np.full((height, width, 3), 255, np.uint8)
    yield rng.integers(0, 256, (height, width, 3), np.uint8)


def changed(rng, shape, box, view):
    """The pixels of `view(photo)` that differ between contents of the box, of a random photo."""
    top, left, height, width = box
    photo = rng.integers(0, 256, (*shape, 3), np.uint8)
    before = view(photo)
    differ = np.zeros(before.shape[:2], bool)
    for content in contents(rng, height, width):
        photo[top : top + height, left : left + width] = content
        differ |= (view(photo) != before).any(axis=2)
    return differ


def hull(differ):
    """Top, left, height and width of the true pixels."""
    if not differ.any():
        return 0, 0, 0, 0
    (top, bottom), (left, right) = (
        np.flatnonzero(differ.any(axis=axis))[[0, -1]] for axis in (1, 0)
    )
    return int(top), int(left), int(bottom - top + 1), int(right - left + 1)


def outside(differ, box):
    """Whether a pixel outside the box is true."""
    top, left, height, width = box
    rest = differ.copy()
    rest[top : top + height, left : left + width] = False
    return rest.any()


def as_jpeg(quality, sampling):
    def view(photo):
        buffer = io.BytesIO()
        Image.fromarray(photo).save(buffer, "JPEG", quality=quality, subsampling=sampling)
        return np.asarray(Image.open(buffer))

    return view


def input_of(preprocessing):
    return lambda photo: np.asarray(preprocessing.resized(Image.fromarray(photo)))


def some_box(data, shape):
    height, width = (data.draw(st.integers(1, side)) for side in shape)
    top = data.draw(st.integers(0, shape[0] - height))
    return top, data.draw(st.integers(0, shape[1] - width)), height, width


@given(st.sampled_from(FILTERS), st.integers(1, 300), st.integers(1, 300), st.data())
def test_a_side_depends_on_exactly_these_pixels(filter, source, target, data):
    """Pillow's own weights of one pixel, in floating point: nothing outside, and at most one pixel
    of the footprint at each end without a weight, not counting those at whole distances, where
    bicubic and Lanczos filters are zero before they end."""
    place = data.draw(st.integers(0, source - 1))
    row = np.zeros((1, source), np.float32)
    row[0, place] = 1
    resized = Image.fromarray(row).resize((target, 1), Image.Resampling[filter.upper()])
    weighty = np.flatnonzero(np.abs(np.asarray(resized)[0]) > 1e-12)
    start, end = resized_spans(np.array([[place, place + 1]]), source, target, filter)[0]
    if len(weighty):
        first, last = weighty[[0, -1]]
        if filter in ("bicubic", "lanczos") and source != target:
            unit = 2 * max(source, target)
            distance = (2 * np.arange(target) + 1) * source - (2 * place + 1) * target
            reached = np.abs(distance) < unit * {"bicubic": 2, "lanczos": 3}[filter]
            zeros = np.flatnonzero((distance % unit == 0) & reached)
            first, last = min([first, *zeros]), max([last, *zeros])
        assert start <= first <= start + 1
        assert end - 1 <= last + 1 <= end
    else:
        assert end - start <= (2 if filter in ("nearest", "box") else 0)


@given(st.sampled_from(FILTERS), st.sampled_from(sorted(MODES)), st.data())
def test_nothing_outside_the_footprint_changes(filter, mode, data):
    shape, size = ((data.draw(sides), data.draw(sides)) for _ in "ab")
    preprocessing = Preprocessing(size, mode, filter)
    box = some_box(data, shape)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    try:
        found = reached(box, shape, preprocessing)
    except ValueError:  # too long and thin to be cropped
        reject()
    assert not outside(changed(rng, shape, box, input_of(preprocessing)), found)
    threat = Footprint.of(SourcePatch(*box[2:]), [shape], preprocessing).threat
    assert np.less_equal(found[2:], (threat.height, threat.width)).all()


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("shape", [(53, 71), (71, 53), (97, 64), (23, 31)])
def test_the_footprint_is_tight(filter, mode, shape):
    """Black, white and noise really change all of it, but a rim of one pixel where weights fade."""
    preprocessing = Preprocessing((37, 41), mode, filter)
    rng = np.random.default_rng(0)
    height, width = shape
    boxes = [(height // 2 - 9, width // 2 - 8, 8, 9), (height // 2 - 3, width // 2, 9, 7)]
    if mode != "crop":  # of which borders show nothing, or only the faint end of a filter
        boxes += [(0, 0, 9, 7), (height - 8, width - 11, 8, 11), (11, 0, 7, 9)]
    for box in boxes:
        found = reached(box, shape, preprocessing)
        differ = changed(rng, shape, box, input_of(preprocessing))
        assert not outside(differ, found)
        seen = hull(differ)
        for side in (0, 1):
            start, end = found[side], found[side] + found[side + 2]
            assert start <= seen[side] <= start + 1
            assert end - 1 <= seen[side] + seen[side + 2] <= end


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_threat_holds_every_placement_and_no_more(filter, mode):
    shape, preprocessing = (19, 29), Preprocessing((13, 11), mode, filter)
    threat = Footprint.of(SourcePatch(5, 4), [shape], preprocessing).threat
    rng = np.random.default_rng(1)
    largest = np.zeros(2, int)
    for top, left in itertools.product(range(15), range(26)):
        differ = changed(rng, shape, (top, left, 5, 4), input_of(preprocessing))
        largest = np.maximum(largest, hull(differ)[2:])
    assert (largest <= (threat.height, threat.width)).all()
    assert (largest >= (threat.height - 1, threat.width - 1)).all()


@pytest.mark.parametrize("sampling", SAMPLING)
@given(shape=st.tuples(sides, sides), data=st.data())
def test_a_jpeg_changes_nothing_beyond_its_blocks(sampling, shape, data):
    box = some_box(data, shape)
    quality = data.draw(st.sampled_from(QUALITIES))
    differ = changed(np.random.default_rng(quality), shape, box, as_jpeg(quality, sampling))
    spans = [
        recompressed_spans(np.array([[start, start + side]]), length, shared)[0]
        for start, side, length, shared in zip(
            box[:2], box[2:], shape, SAMPLING[sampling], strict=True
        )
    ]
    (top, bottom), (left, right) = spans
    assert not outside(differ, (top, left, bottom - top, right - left))


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("shape", [(96, 96), (83, 89)])
def test_a_jpeg_really_reaches_that_far(sampling, shape):
    """Fancy upsampling does change the first pixel beyond a block of chroma, and not the second."""
    rows, columns = SAMPLING[sampling]
    differ = np.zeros(shape, bool)
    rng = np.random.default_rng(2)
    for quality in QUALITIES:
        differ |= changed(rng, shape, (40, 43, 7, 3), as_jpeg(quality, sampling))
    top, bottom = (40, 48) if rows == 1 else (31, 49)
    left, right = (40, 48) if columns == 1 else (31, 49)
    assert hull(differ) == (top, left, bottom - top, right - left)


@given(
    st.sampled_from(FILTERS),
    st.sampled_from(sorted(MODES)),
    st.sampled_from(sorted(SAMPLING)),
    st.sampled_from(QUALITIES),
    st.data(),
)
def test_nothing_outside_changes_through_a_jpeg(filter, mode, sampling, quality, data):
    shape, size = ((data.draw(st.integers(20, 80)), data.draw(st.integers(20, 80))) for _ in "ab")
    preprocessing = Preprocessing(size, mode, filter)
    box = some_box(data, shape)
    found = reached(box, shape, preprocessing, sampling)
    compressed, resized = as_jpeg(quality, sampling), input_of(preprocessing)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    assert not outside(changed(rng, shape, box, lambda photo: resized(compressed(photo))), found)
    threat = Footprint.of(SourcePatch(*box[2:], jpeg=sampling), [shape], preprocessing).threat
    assert np.less_equal(found[2:], (threat.height, threat.width)).all()


def test_every_filter_and_mode_has_a_footprint():
    for filter, mode in itertools.product(FILTERS, MODES):
        assert Footprint.of(SourcePatch(5, 5), [(40, 50)], Preprocessing(20, mode, filter))


def test_of_several_sizes_the_worst_counts():
    sizes = [(480, 640), (640, 480), (480, 640), (500, 375)]
    footprint = Footprint.of(SourcePatch(64, 64), sizes, 448)
    alone = [Footprint.of(SourcePatch(64, 64), [size], 448).threat for size in sizes]
    assert footprint.threat.height == max(threat.height for threat in alone) == 61
    assert footprint.threat.width == max(threat.width for threat in alone) == 78
    assert (footprint.sizes, footprint.tallest, footprint.widest) == (3, (480, 640), (500, 375))
    assert str(footprint) == (
        "patch of 64 x 64 pixels of the photo: it reaches at most 61 x 78 pixels of the input (the "
        "worst of 3 sizes of photos: 480 x 640 and 500 x 375; squash, bilinear)"
    )


def test_a_share_is_of_each_photo():
    patch = SourcePatch(share=0.02)
    assert patch.on((480, 640)) == (79, 79)
    assert patch.on((100, 50)) == (10, 10)
    assert str(patch) == "patch of 2% of the photo, as a square"


def test_where_nothing_is_resized_the_footprint_is_the_patch():
    for filter in FILTERS:
        found = Footprint.of(SourcePatch(7, 5), [(40, 50)], Preprocessing((40, 50), filter=filter))
        assert found.threat == PatchThreat(7, 5)


def test_a_footprint_survives_json():
    how = Preprocessing((20, 30), "letterbox", "lanczos", 0.25)
    footprint = Footprint.of(SourcePatch(share=0.05, jpeg="4:2:2"), [(90, 80), (50, 99)], how)
    assert Footprint.from_record(json.loads(json.dumps(asdict(footprint)))) == footprint


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SourcePatch(), "given by height and width, or by its share"),
        (lambda: SourcePatch(3), "given by height and width, or by its share"),
        (lambda: SourcePatch(3, 3, 0.1), "given by height and width, or by its share"),
        (lambda: SourcePatch(0, 3), "at least 1 x 1 pixels, but got 0 x 3"),
        (lambda: SourcePatch(share=2), "above 0 and at most 1, but got 2"),
        (lambda: SourcePatch(3, 3, jpeg="4:1:1"), "one of 4:4:4, 4:2:2, 4:2:0, but got '4:1:1'"),
        (
            lambda: Footprint.of(SourcePatch(64, 64), [(480, 640), (50, 90)], 448),
            "photo of 50 x 90 pixels: a patch of 64 x 64 pixels does not fit; give it as a share",
        ),
        (lambda: Footprint.of(SourcePatch(4, 4), [], 448), "the size of at least one photo"),
        (
            lambda: Footprint.of(
                SourcePatch(4, 4, jpeg="4:4:4"), [(9, 9)], Preprocessing(8, exif_rotation=True)
            ),
            "not known after exif_rotation",
        ),
    ],
)
def test_errors_say_what_is_possible(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("turned", [False, True])
def test_the_size_of_a_photo_is_what_decoding_gives(turned):
    exif = Image.Exif()
    exif[0x0112] = 6
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000"):
        content = encoded(Image.new("RGB", (20, 10)), form, exif=exif)
        whole = decode(content, "a", fill=0, exif_rotation=turned)
        assert photo_size(content, "a", exif_rotation=turned) == (whole.height, whole.width)


def test_sizes_of_a_data_set_are_found_and_photos_named(photos):
    write(photos / "b.jpg", photo(1, size=(40, 20)))
    whole = folder(photos, 12)
    assert sizes_in(whole) == {(40, 20): "b.jpg", (20, 30): "a.png"}
    assert sizes_in(subset(whole, [2, 0])) == {(20, 30): "sub/c.jpg", (40, 20): "b.jpg"}
    assert sizes_in(whole, limit=1) == {(40, 20): "b.jpg"}
    footprint = Footprint.in_set(SourcePatch(8, 8), whole)
    assert footprint == Footprint.of(SourcePatch(8, 8), [(40, 20), (20, 30)], 12)
    with pytest.raises(
        ValueError, match=r"a\.png of 20 x 30 pixels: a patch of 25 x 9 pixels does"
    ):
        Footprint.in_set(SourcePatch(25, 9), whole)
    (photos / "a.png").unlink()
    assert sizes_in(whole) == {(40, 20): "b.jpg", (20, 30): "sub/c.jpg"}
    (photos / "b.jpg").unlink()
    with pytest.raises(
        ImageError, match=r"none of the photos can be read, the first of them b\.jpg"
    ):
        sizes_in(whole, limit=2)
    tensors = TensorSet(torch.rand(1, 3, 4, 4), [[1]], ["cat"], "noise")
    with pytest.raises(ValueError, match="a patch on the photo needs photos"):
        Footprint.in_set(SourcePatch(1, 1), tensors)


def test_a_run_records_the_patch_on_the_photo(photos, tmp_path):
    dataset = folder(photos, 12)
    patch = SourcePatch(6, 5, jpeg="4:4:4")
    footprint = Footprint.in_set(patch, dataset)

    def demux(threat):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 2))
        return PatchDemux(model, threat, DoubleMasking(2), 12, batch_size=8)

    path = tmp_path / "run"
    plain = evaluate(demux(footprint.threat), dataset, tmp_path / "plain")
    assert plain.footprint is None
    assert plain.against == str(plain.threat)
    assert "after a photo was resized, not on the photo itself" in caveats(plain, 0)[0]
    run = evaluate(demux(footprint.threat), dataset, path, footprint=footprint)
    assert run.footprint == footprint
    assert run.threat == footprint.threat
    assert json.loads((path / "zarr.json").read_text())["attributes"]["footprint"]["patch"] == {
        "height": 6, "width": 5, "share": None, "jpeg": "4:4:4"
    }  # fmt: skip
    assert f"against one {run.threat} ({patch})" in f"against one {run.against}"
    first = caveats(run, 0)[0]
    assert first.startswith(f"On the photo itself, it holds for every {footprint}, as Pillow")
    assert "after the same JPEG compression" in first
    np.testing.assert_array_equal(plain.bounds().lower, run.bounds().lower)
    evaluate(demux(footprint.threat), dataset, path, footprint=footprint)  # resumes: nothing to do
    with pytest.raises(RunError, match=r"footprint was patch of 6 x 5 pixels .*, but is not set"):
        evaluate(demux(footprint.threat), dataset, path)
    with pytest.raises(
        RunError, match="is defended against one patch of 9 x 9 pixels, but the foo"
    ):
        evaluate(demux(PatchThreat(9, 9)), dataset, path, footprint=footprint)
    other = Footprint.of(patch, [(30, 30)], 12)
    with pytest.raises(RunError, match="the footprint is not the one of this data set"):
        evaluate(demux(other.threat), dataset, path, footprint=other)
