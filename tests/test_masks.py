"""Threats and mask sets: coverage is proved, and a set that does not cover is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchdemux import MaskSet, PatchThreat

sizes = st.integers(1, 24)


def covers(masks, threat, image_size):
    """Literally: every placement of the patch lies inside a mask, pixel by pixel."""
    dense = masks.dense()
    for top in range(image_size[0] - threat.height + 1):
        for left in range(image_size[1] - threat.width + 1):
            patch = np.zeros(image_size, bool)
            patch[top : top + threat.height, left : left + threat.width] = True
            if not any((mask | ~patch).all() for mask in dense):
                return False
    return True


@given(st.data())
def test_covering_sets_cover(data):
    image_size = data.draw(sizes), data.draw(sizes)
    threat = PatchThreat(*(data.draw(st.integers(1, side)) for side in image_size))
    requested = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    masks = MaskSet.covering(image_size, threat, requested)
    assert covers(masks, threat, image_size)
    assert len(masks) == np.prod(masks.grid) <= np.prod(requested)
    assert ("asked for" in str(masks)) == (masks.grid != requested)


@given(st.data())
def test_the_proof_agrees_with_a_literal_check(data):
    """Take masks away from a covering set: it is refused exactly when it no longer covers."""
    image_size, threat = (9, 11), PatchThreat(data.draw(st.integers(1, 4)), 3)
    masks = MaskSet.covering(image_size, threat, (3, 2))
    chosen = data.draw(st.lists(st.integers(0, len(masks) - 1), min_size=1, unique=True))
    kept = masks.boxes[chosen]
    hidden = masks.dense()[chosen]

    class Kept:
        def dense(self):
            return hidden

    if covers(Kept(), threat, image_size):
        MaskSet(image_size, threat, kept)
    else:
        with pytest.raises(ValueError, match="the masks do not cover the threat"):
            MaskSet(image_size, threat, kept)


def test_a_mask_set_one_pixel_too_small_is_refused():
    masks = MaskSet.covering(448, PatchThreat(64, 64))
    smaller = masks.boxes - [0, 0, 1, 0]
    with pytest.raises(
        ValueError, match=r"top left corner at row 64, column 0 lies inside no mask"
    ):
        MaskSet((448, 448), PatchThreat(64, 64), smaller)


def test_a_mask_smaller_than_the_patch_covers_nothing():
    with pytest.raises(ValueError, match="do not cover"):
        MaskSet((8, 8), PatchThreat(3, 3), np.array([[0, 0, 2, 8], [0, 0, 8, 2]]))


def test_unions_are_the_distinct_unordered_pairs():
    unions = MaskSet.covering(448, PatchThreat(64, 64)).unions()
    assert unions.shape == (666, 2)
    assert len({frozenset(pair) for pair in unions.tolist()}) == 666


def test_boxes_cannot_be_changed_after_the_proof():
    masks = MaskSet.covering(32, PatchThreat(4, 4))
    with pytest.raises(ValueError, match="read-only"):
        masks.boxes[0, 0] = 5


def test_a_set_with_fewer_masks_than_asked_says_so():
    masks = MaskSet.covering(10, PatchThreat(3, 3), (6, 2))
    assert masks.grid == (4, 2)
    assert masks.requested == (6, 2)
    assert str(masks) == (
        "8 masks (4 x 2) of 4 x 6 pixels on images of 10 x 10, proved to cover every patch of "
        "3 x 3 pixels; 6 x 2 were asked for, but so many different masks are not needed"
    )


@pytest.mark.parametrize(
    ("fraction", "size", "side"),
    [(0.02, 448, 64), (0.02, 384, 55), (0.005, 448, 32), (0.08, 448, 127), (0.01, 100, 10),
     (1.0, 7, 7), (1e-9, 10, 1), (0.02, (64, 64), 10)],
)  # fmt: skip
def test_smallest_square_of_a_share(fraction, size, side):
    assert PatchThreat.from_area(fraction, size) == PatchThreat(side, side)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PatchThreat(0, 4), "a patch must be at least 1 x 1 pixels, but got 0 x 4"),
        (lambda: PatchThreat(2.5, 4), "must be one integer or"),
        (
            lambda: PatchThreat.from_area(2, 448),
            r"share of the image, above 0 and at most 1 \(0.02",
        ),
        (lambda: PatchThreat.from_area(float("nan"), 448), "at most 1 .* but got nan"),
        (lambda: PatchThreat.from_area("two", 448), "fraction must be a number, but got 'two'"),
        (lambda: PatchThreat.from_area(0.02, None), "image_size must be one integer or"),
        (lambda: PatchThreat.from_area(0.02, 448.0), "image_size must be one integer or"),
        (lambda: PatchThreat.from_area(0.5, (10, 100)), "sides of 23 pixels and does not fit"),
        (
            lambda: MaskSet.covering(32, PatchThreat(33, 4)),
            "33 x 4 pixels does not fit into an image of 32 x 32; "
            "the patch may have at most 32 x 32 pixels",
        ),
        (
            lambda: MaskSet.covering(32, PatchThreat(4, 4), (0, 6)),
            "masks must have at least 1 row and 1 column, but got 0 x 6",
        ),
        (lambda: MaskSet.covering(32, PatchThreat(4, 4), (6,)), "masks must be one integer or"),
        (lambda: MaskSet.covering(32, PatchThreat(4, 4), None), "masks must be one integer or"),
        (lambda: MaskSet.covering(32, (4, 4)), r"threat must be a PatchThreat, but got \(4, 4\)"),
        (
            lambda: MaskSet.covering((32, 32, 3), PatchThreat(4, 4)),
            "image_size must be one integer",
        ),
        (
            lambda: MaskSet((8, 8), PatchThreat(2, 2), np.array([[0, 0, 9, 8]])),
            "outside the image",
        ),
        (lambda: MaskSet((8, 8), PatchThreat(2, 2), np.array([[0.0, 0, 8, 8]])), "integer array"),
        (lambda: MaskSet((8, 8), PatchThreat(9, 2), np.array([[0, 0, 8, 8]])), "does not fit"),
    ],
)
def test_errors_say_what_is_possible(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_sizes_may_be_integers_of_numpy():
    size, count, patch = np.int64(32), np.int32(3), PatchThreat(np.int64(4), np.uint8(4))
    masks = MaskSet.covering(size, patch, count)
    assert masks.image_size == (32, 32)
    assert masks.grid == (3, 3)
    np.testing.assert_array_equal(
        MaskSet.covering(np.array([32, 32]), patch, np.array([3, 3])).boxes, masks.boxes
    )
    assert PatchThreat.from_area(np.float32(0.02), size) == PatchThreat.from_area(0.02, 32)
