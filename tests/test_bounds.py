"""What `ScoreBounds` accepts, and what it refuses with which words."""

import numpy as np
import pytest
import torch

from patchdemux import ScoreBounds, certify, predict
from patchdemux.certify import errors_by_region
from tables import symmetric_table

TABLE = symmetric_table(np.random.default_rng(0), 2, 3, 4)
CLEAN = TABLE[:, 0, 0]


def with_value(value, *where):
    table = TABLE.copy()
    table[where] = value
    return table


def test_tensors_and_lists_are_welcome():
    expected = ScoreBounds.from_pairs(TABLE, CLEAN)
    for convert in (torch.from_numpy, lambda x: torch.from_numpy(x).bfloat16(), np.float64):
        bounds = ScoreBounds.from_pairs(convert(TABLE), convert(CLEAN))
        np.testing.assert_array_equal(bounds.lower, expected.lower)
    targets = torch.tensor([[0, 1, 1, 0]] * 2)
    assert certify(expected, targets, 0.0).tp.shape == (2,)
    assert certify(expected, targets.tolist(), torch.tensor(0.0)).tp.shape == (2,)
    assert repr(expected) == "ScoreBounds(2 images, 3 regions, 4 classes)"
    assert len(expected) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ScoreBounds.from_pairs(TABLE[0]),
            r"scores must have the dimensions \(image mask mask class\), but got shape \(3, 3, 4\)",
        ),
        (lambda: ScoreBounds.from_pairs(TABLE[:, :2]), "as many first as second masks"),
        (lambda: ScoreBounds.from_pairs(TABLE[:0]), "scores is empty"),
        (lambda: ScoreBounds.from_pairs(TABLE.astype(int)), "floating-point scores, but got int64"),
        (
            lambda: ScoreBounds.from_pairs(with_value(np.nan, 1, 2, 2, 3)),
            r"the first of them nan at \(image mask mask class\) = \(1, 2, 2, 3\)",
        ),
        (
            lambda: ScoreBounds.from_pairs(with_value(np.inf, 1, 2, 2, 3)),
            "must be finite, but 1 of",
        ),
        (
            lambda: ScoreBounds.from_pairs(with_value(9, 1, 0, 2, 3)),
            r"image 1, class 3 has 9\.0 under masks \(0, 2\) and -?\d\S* under \(2, 0\)",
        ),
        (
            lambda: ScoreBounds.from_pairs(TABLE, CLEAN[:1]),
            r"clean has shape \(1, 4\), but defended \(2, 4\)",
        ),
        (
            lambda: ScoreBounds.from_pairs(TABLE, CLEAN[:, :1], center="undefended"),
            r"clean has shape \(2, 1\), but defended \(2, 4\)",
        ),
        (lambda: ScoreBounds.from_pairs(TABLE, center="undefended"), "needs the clean scores"),
        (
            lambda: ScoreBounds(None, CLEAN, TABLE[:, 0], TABLE[:, 0, :2]),
            r"upper has shape \(2, 2, 4\), but 2 images, 3 regions and 4 classes need \(2, 3, 4\)",
        ),
        (
            lambda: ScoreBounds(None, CLEAN, np.full((2, 3, 4), np.inf), TABLE[:, 0]),
            "lower must be finite, but 24 of its scores are not, the first of them inf",
        ),
        (lambda: predict(ScoreBounds.from_pairs(TABLE), float("nan")), "a number, but got NaN"),
        (lambda: predict(ScoreBounds.from_pairs(TABLE), None), "must be a number, but got None"),
        (lambda: predict(ScoreBounds.from_pairs(TABLE), torch.zeros(2)), "must be a number, but"),
        (lambda: certify(ScoreBounds.from_pairs(TABLE), CLEAN, 0.0), "targets must be 0 or 1, but"),
    ],
)
def test_bad_tables_are_refused_with_a_clear_text(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_shapes_in_signatures_are_checked_in_these_tests():
    """The guard of the guards: a wrong shape behind the public edge is noticed."""
    with pytest.raises(TypeError, match="image region class"):
        errors_by_region(np.zeros((2, 3), bool), np.zeros((2, 3), bool))
