"""The closed forms against the paper's algorithms written literally."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from patchdemux import ScoreBounds, certified, certify, predict, vulnerable
from patchdemux.certify import exceeds
from tables import tables, thresholds


def per_class(scores, image):
    """The literal algorithms want, per class, the table (mask, mask)."""
    return [scores[image, :, :, c].tolist() for c in range(scores.shape[3])]


@given(tables(), thresholds)
def test_inference_is_algorithm_1(table, threshold):
    scores, _ = table
    labels = predict(ScoreBounds.from_pairs(scores), threshold)
    for image, row in enumerate(labels):
        assert row.tolist() == reference.demux_inference(per_class(scores, image), threshold)


@given(tables(), thresholds)
def test_certification_is_algorithm_2(table, threshold):
    scores, targets = table
    bounds = ScoreBounds.from_pairs(scores)
    certificate = certify(bounds, targets, threshold, "class")
    for image, y in enumerate(targets.tolist()):
        kappa, expected = reference.demux_certification(per_class(scores, image), y, threshold)
        assert certificate.certified[image].tolist() == kappa
        got = certificate.tp[image], certificate.fp[image], certificate.fn[image]
        assert got == expected
    np.testing.assert_array_equal(certified(bounds, targets, threshold), certificate.certified)


@pytest.mark.parametrize("attacker", ["worst", "fn", "fp"])
@given(table=tables(), threshold=thresholds)
def test_location_aware_certification_is_algorithm_3(attacker, table, threshold):
    scores, targets = table
    bounds = ScoreBounds.from_pairs(scores)
    method = "location" if attacker == "worst" else f"location-{attacker}"
    certificate = certify(bounds, targets, threshold, method)
    for image, y in enumerate(targets.tolist()):
        robust, expected = reference.location_aware(
            per_class(scores, image), y, threshold, attacker
        )
        assert (~certificate.vulnerable[image]).T.tolist() == robust
        got = certificate.tp[image], certificate.fp[image], certificate.fn[image]
        assert got == expected
    np.testing.assert_array_equal(vulnerable(bounds, targets, threshold), certificate.vulnerable)


@given(tables(), thresholds)
def test_location_aware_is_never_below_class_certification(table, threshold):
    scores, targets = table
    bounds = ScoreBounds.from_pairs(scores)
    by_class = certify(bounds, targets, threshold, "class")
    worst = certify(bounds, targets, threshold, "location")
    assert (worst.tp >= by_class.tp).all()
    assert (worst.fp <= by_class.fp).all()
    for method in ("location-fn", "location-fp"):
        attacker = certify(bounds, targets, threshold, method)
        assert (attacker.tp >= worst.tp).all()
        assert (attacker.fp <= worst.fp).all()


@given(tables(), thresholds, st.sampled_from(["both", "recall", "precision"]))
def test_centers_and_guards(table, threshold, guard):
    """The certificate does not depend on the center; a one-sided guard keeps its own side."""
    scores, targets = table
    clean = scores[:, 0, 0]
    paper = ScoreBounds.from_pairs(scores, clean)
    other = ScoreBounds.from_pairs(scores, clean, center="undefended", guard=guard)
    if guard != "precision":
        np.testing.assert_array_equal(other.lower, paper.lower)
        assert (other.defended >= paper.lower.max(axis=1)).all()
    if guard != "recall":
        np.testing.assert_array_equal(other.upper, paper.upper)
        assert (other.defended <= paper.upper.min(axis=1)).all()
    if guard == "recall":
        assert (other.defended >= clean).all()  # recall without an attack never falls
        assert np.isposinf(other.upper).all()
    if guard == "precision":
        assert (other.defended <= clean).all()
        assert np.isneginf(other.lower).all()
    held = certified(other, targets, threshold)
    assert (held <= certified(paper, targets, threshold)).all()


def test_comparisons_are_exact():
    """float32(0.3) is greater than 0.3, and float32(0.7) is less than 0.7: neither is equal."""
    scores = np.array([0.3, 0.7, 0.5], np.float32)
    assert exceeds(scores, 0.3).tolist() == [True, True, True]
    assert exceeds(scores, 0.7).tolist() == [False, False, False]
    assert exceeds(scores, 0.5).tolist() == [False, True, False]
    assert exceeds(scores, 1e300).tolist() == [False] * 3
    assert exceeds(scores, -1e300).tolist() == [True] * 3


@given(st.floats(width=32, allow_nan=False), st.floats(allow_nan=False))
def test_comparison_equals_that_of_python_floats(score, threshold):
    assert exceeds(np.array([score], np.float32), threshold)[0] == (score > threshold)


def test_bounds_may_prove_nothing_but_never_contradict_themselves():
    defended = np.zeros((1, 2), np.float32)
    unproved = np.full((1, 3, 2), np.inf, np.float32)
    bounds = ScoreBounds(None, defended, -unproved, unproved)
    certificate = certify(bounds, [[1, 0]], 0.0, "location")
    assert certificate.tp.tolist() == [0]
    assert certificate.fp.tolist() == [1]
    with pytest.raises(ValueError, match=r"image 0, region 0, class 0: 0\.0 is not within \[1\.0"):
        ScoreBounds(None, defended, np.ones((1, 3, 2), np.float32), unproved)
