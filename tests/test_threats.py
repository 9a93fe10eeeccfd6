"""Several patches and patches of many shapes: what they are, and that masks cover them."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchdemux import MaskSet, PatchThreat
from patchdemux.defenses.unions import MOST_REGIONS, Unions, count_sets
from tiny import placements

ratios = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda pair: Fraction(*pair))


@given(st.integers(1, 60), ratios, ratios, st.integers(1, 12), st.integers(1, 12))
def test_the_shapes_are_the_largest_rectangles_of_the_area(pixels, low, high, height, width):
    low, high = sorted((low, high))
    allowed = [
        (h, w)
        for h, w in product(range(1, height + 1), range(1, width + 1))
        if h * w <= pixels and low <= Fraction(w, h) <= high
    ]
    largest = [
        (h, w)
        for h, w in allowed
        if not any((a, b) != (h, w) and a >= h and b >= w for a, b in allowed)
    ]
    if not allowed:
        with pytest.raises(ValueError, match="no rectangle of at most"):
            PatchThreat.rectangles(pixels, (low, high), (height, width))
        return
    threat = PatchThreat.rectangles(pixels, (low, high), (height, width))
    assert sorted(threat.all_shapes) == sorted(largest)
    assert (threat.height, threat.width) == tuple(np.max(largest, axis=0))
    assert PatchThreat(**threat.settings) == threat


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_one_set_of_masks_covers_every_shape(pixels, elongation, rows, columns):
    size = (9, 12)
    threat = PatchThreat.rectangles(pixels, (1 / elongation, elongation), size)
    masks = MaskSet.covering(size, threat, (rows, columns)).dense()
    for ((top, left, height, width),) in placements(size, threat):
        patch = np.zeros(size, bool)
        patch[top : top + height, left : left + width] = True
        assert (masks | ~patch).all(axis=(1, 2)).any()


def test_masks_that_miss_one_shape_are_refused():
    threat = PatchThreat.rectangles(4, (0.25, 4), 8)
    assert threat.shapes == ((1, 4), (2, 2), (4, 1))
    masks = MaskSet.covering(8, threat, 3)
    MaskSet((8, 8), threat, masks.boxes)
    with pytest.raises(ValueError, match="a patch of 1 x 4 pixels with its top left corner"):
        MaskSet((8, 8), threat, masks.boxes - [0, 0, 1, 0])
    wide, tall = (MaskSet.covering(8, PatchThreat(*s), (4, 4)).boxes for s in ((2, 4), (4, 2)))
    mixed = MaskSet((8, 8), threat, np.concatenate([wide, tall]))
    assert "every patch of 3 shapes within 4 x 4 pixels" in str(mixed)


def test_threats_in_words_and_as_records():
    plain = PatchThreat(3, 2)
    assert (repr(plain), plain.settings) == (
        "PatchThreat(height=3, width=2)",
        {"height": 3, "width": 2},
    )
    two = PatchThreat(3, 2, count=2)
    assert str(two) == "set of 2 patches of 3 x 2 pixels"
    assert two.settings == {"height": 3, "width": 2, "count": 2}
    assert two.single == plain
    many = PatchThreat.rectangles(6, (0.5, 2), 32)
    assert str(many) == "patch of 2 shapes within 3 x 3 pixels, at most 6 pixels each"
    assert PatchThreat(**{**many.settings, "shapes": [[2, 3], [3, 2]]}) == many  # from JSON
    assert PatchThreat(2, 3, shapes=((2, 3), (1, 2))) == PatchThreat(2, 3)
    assert PatchThreat.rectangles(16, (1, 1), 32) == PatchThreat(4, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PatchThreat(1, 1, count=0),
            "count is the number of patches, at least 1, but got 0",
        ),
        (lambda: PatchThreat(3, 3, shapes=((2, 3),)), "do not fill 3 x 3 pixels"),
        (lambda: PatchThreat.rectangles(0, (1, 2), 8), "at least 1 pixel"),
        (lambda: PatchThreat.rectangles(9, (2, 1), 8), "lowest first"),
        (lambda: PatchThreat.rectangles(3, (4, 5), 8), "no rectangle of at most 3 whole pixels"),
        (
            lambda: MaskSet.covering(8, PatchThreat(9, 2, count=2)),
            "a patch of 9 x 2 pixels does not fit into an image of 8 x 8",
        ),
    ],
)
def test_threats_that_are_none(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- unions of masks -----------------------------------------------------------------------------


def covering(rows, columns):
    return MaskSet.covering((16, 16), PatchThreat(2, 2), (rows, columns))


@pytest.mark.parametrize(
    ("rows", "columns", "patches"),
    [(1, 1, 1), (3, 2, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (3, 2, 2), (2, 2, 3), (2, 2, 9)],
)
def test_every_pair_of_regions_has_its_union_and_no_union_is_run_twice(rows, columns, patches):
    masks = covering(rows, columns)
    unions = Unions.of(masks, patches)
    regions = [frozenset(row) for row in unions.regions.tolist()]
    literal = {frozenset(s) for s in product(range(len(masks)), repeat=min(patches, len(masks)))}
    assert len(regions) == len(literal) == count_sets(len(masks), patches)
    assert set(regions) == literal
    views = [frozenset(row) for row in unions.views.tolist()]
    assert len(set(views)) == len(views) == count_sets(len(masks), 2 * patches)
    for (i, a), (j, b) in product(enumerate(regions), repeat=2):
        assert views[unions.table[i, j]] == a | b


def test_the_views_of_one_patch_stay_in_the_order_that_runs_were_made_with():
    masks = MaskSet.covering(448, PatchThreat(64, 64))
    np.testing.assert_array_equal(Unions.of(masks).views, masks.unions())


def test_the_unions_of_two_patches_at_six_by_six():
    unions = Unions.of(MaskSet.covering(448, PatchThreat(64, 64)), 2)
    assert unions.views.shape == (66711, 4)
    assert unions.regions.shape == (666, 2)
    assert count_sets(64, 2) == MOST_REGIONS  # the bits of a number are enough for the masks
    assert all(count_sets(65, patches) > MOST_REGIONS for patches in range(2, 65))


@given(st.integers(0, 10**6), st.sampled_from([(1, 2), (2, 2), (3, 2)]), st.integers(1, 2))
def test_rows_are_the_extremes_of_the_whole_table(seed, grid, patches):
    unions = Unions.of(covering(*grid), patches)
    scores = np.random.default_rng(seed).normal(size=(2, len(unions.views), 3)).astype("f4")
    lower, upper, singles = unions.rows(scores)
    table = scores[:, unions.table]
    np.testing.assert_array_equal(lower, table.min(axis=2))
    np.testing.assert_array_equal(upper, table.max(axis=2))
    np.testing.assert_array_equal(singles, np.diagonal(table, axis1=1, axis2=2).swapaxes(1, 2))
