"""Curves against second ways of getting them: literal counts, scikit-learn, enumeration."""

from itertools import pairwise, product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from patchdemux import (
    ScoreBounds,
    average_precision_per_class,
    certify,
    exact_worst_case,
    mean_average_precision,
    paper_protocol,
    precision_recall_curve,
)
from patchdemux.certify import errors_by_region
from patchdemux.metrics import PAPER_THRESHOLDS, SETTINGS, Curve, pseudo_scores
from patchdemux.metrics.coupled import measure
from patchdemux.metrics.curves import curve_of, operating_point
from patchdemux.metrics.frontier import frontiers
from tables import symmetric_table, tables, thresholds

EXACT_AT_EVERY_THRESHOLD = ("undefended", "defended", "certified", "location")
COUPLED = ("location-fn", "location-fp", "exact")


def bounds_of(table):
    scores, targets = table
    return ScoreBounds.from_pairs(scores, scores[:, 0, 0]), targets


@pytest.mark.parametrize("setting", EXACT_AT_EVERY_THRESHOLD)
@given(table=tables(), threshold=thresholds)
def test_pseudo_scores_count_what_the_algorithms_count(setting, table, threshold):
    bounds, targets = bounds_of(table)
    assume(targets.any())
    positive, negative = pseudo_scores(bounds, targets, setting)
    assert len(positive) == targets.sum()
    assert len(positive) + len(negative) == targets.size
    tp, fp = (positive > threshold).sum(), (negative > threshold).sum()
    precision, recall = operating_point(bounds, targets, setting, threshold)
    assert recall == tp / targets.sum()
    assert precision == (tp / (tp + fp) if tp + fp else 1.0)


@pytest.mark.parametrize("setting", SETTINGS)
@given(table=tables())
def test_curves_pass_through_the_operating_points(setting, table):
    bounds, targets = bounds_of(table)
    assume(targets.any())
    curve = precision_recall_curve(bounds, targets, setting)
    assert (np.diff(curve.recall) >= 0).all()
    assert (np.diff(curve.thresholds) < 0).all()
    for t, precision, recall in zip(curve.thresholds, curve.precision, curve.recall, strict=True):
        expected = operating_point(bounds, targets, setting, t)
        if setting == "location-fp":  # made monotone, on the safe side
            assert precision == expected[0]
            assert recall <= expected[1]
        else:
            assert (precision, recall) == expected


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 30))
def test_average_precision_is_scikit_learns(seed, positives, negatives):
    rng = np.random.default_rng(seed)
    positive = rng.integers(-3, 6, positives).astype(np.float32)
    negative = rng.integers(-6, 3, negatives).astype(np.float32)
    expected = average_precision_score(
        np.repeat([1, 0], [positives, negatives]), np.concatenate([positive, negative])
    )
    assert curve_of(positive, negative).average_precision() == pytest.approx(expected)


def test_average_precision_per_class_and_map():
    rng = np.random.default_rng(0)
    scores = symmetric_table(rng, 20, 4, 5)
    targets = rng.integers(0, 2, (20, 5))
    targets[:, 3] = 0
    bounds = ScoreBounds.from_pairs(scores, scores[:, 0, 0])
    for setting in ("undefended", "defended"):
        plain = bounds.clean if setting == "undefended" else bounds.defended
        per_class = average_precision_per_class(bounds, targets, setting)
        assert np.isnan(per_class[3])  # no true label: there is no such number
        for c in (0, 1, 2, 4):
            expected = average_precision_score(targets[:, c], plain[:, c])
            assert per_class[c] == pytest.approx(expected)
        kept = np.delete(per_class, 3)
        assert mean_average_precision(bounds, targets, setting) == pytest.approx(kept.mean())
    certified = average_precision_per_class(bounds, targets, "certified")
    for c in (0, 1, 2, 4):
        y = targets[:, c]
        pseudo = np.where(y, bounds.lower[:, :, c].min(1), bounds.upper[:, :, c].max(1))
        assert certified[c] == pytest.approx(average_precision_score(y, pseudo))


def test_paper_average_precision_of_a_known_curve():
    """Precision 1 up to 50% recall, then straight down to 0.5: area 0.25 + 0.375, over 0.75."""
    curve = curve_of(np.array([4.0, 3.0]), np.array([]))
    assert curve.paper_average_precision() == 1
    curve = curve_of(np.array([4.0, 1.0]), np.array([3.0, 2.0]))
    # Points (recall, precision): (0, 1), (.5, 1), (.5, 1/2), (.5, 1/3), (1, 1/2)
    assert curve.precision_at(0.5) == 1
    assert curve.precision_at(0.75) == pytest.approx((1 / 3 + 1 / 2) / 2)
    area = 0.25 * 1 + 0.5 * (1 / 3 + 1 / 2) / 2
    assert curve.paper_average_precision() == pytest.approx(area / 0.75)


def test_recall_that_is_never_reached_counts_as_zero_precision():
    curve = curve_of(np.array([1.0, 1.0, -np.inf, -np.inf]), np.array([]))
    assert curve.recall[-1] == 0.5
    assert curve.precision_at(0.5) == 1
    assert curve.precision_at(0.6) == 0
    assert curve.paper_average_precision() == pytest.approx(0.25 / 0.75)
    assert curve_of(np.array([-np.inf]), np.array([1.0])).paper_average_precision() == 0


@pytest.mark.parametrize("metric", ["precision", "recall", "f1"])
@given(table=tables(max_masks=3), threshold=thresholds)
def test_exact_bound_is_the_minimum_over_all_choices_of_regions(metric, table, threshold):
    bounds, targets = bounds_of(table)
    worst = exact_worst_case(bounds, targets, threshold, metric)
    wrong = certify(bounds, targets, threshold).vulnerable
    y = targets.astype(bool)

    def value(regions):
        chosen = wrong[np.arange(len(y)), list(regions)]
        fn, fp = (chosen & y).sum(), (chosen & ~y).sum()
        tp = y.sum() - fn
        part, whole = {
            "precision": (tp, tp + fp),
            "recall": (tp, tp + fn),
            "f1": (2 * tp, 2 * tp + fp + fn),
        }[metric]
        return part / whole if whole else 1.0

    choices = product(range(wrong.shape[1]), repeat=len(y))
    assert worst.value == pytest.approx(min(value(regions) for regions in choices), abs=1e-12)
    assert worst.value == pytest.approx(value(worst.regions), abs=1e-12)  # somebody attains it


@given(tables(), thresholds)
def test_exact_is_never_below_location_and_location_never_below_certified(table, threshold):
    bounds, targets = bounds_of(table)
    assume(targets.any())
    points = [
        operating_point(bounds, targets, setting, threshold)
        for setting in ("certified", "location", "exact")
    ]
    precisions, recalls = zip(*points, strict=True)
    assert list(recalls) == sorted(recalls)
    tp = [round(r * targets.sum()) for r in recalls]
    assert list(precisions) == sorted(precisions) or 0 in tp


def realistic(images=60, masks=9, classes=12, seed=0):
    """A data set like a real one: few true labels, scores that fall where a mask hides the object."""
    rng = np.random.default_rng(seed)
    targets = (rng.random((images, classes)) < 0.2).astype(int)
    clean = rng.normal(np.where(targets, 2.5, -3.0), 1.5)
    drop = rng.exponential(0.4, (images, masks, classes)) * np.where(targets, 1, -0.5)[:, None]
    table = clean[:, None, None] - drop[:, :, None] - drop[:, None]
    return ScoreBounds.from_pairs(table.astype(np.float32), clean.astype(np.float32)), targets


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_papers_protocol_against_the_whole_curve(setting):
    """Its 45 thresholds and its bisection come within two points of the curve through all of them."""
    bounds, targets = realistic(images=200)
    row = paper_protocol(bounds, targets, setting)
    curve = precision_recall_curve(bounds, targets, setting)
    assert row.average_precision == pytest.approx(curve.paper_average_precision(), abs=0.02)
    for recall, precision in row.precision_at.items():
        assert precision == pytest.approx(curve.precision_at(recall), abs=0.02)


def test_the_papers_protocol_does_not_reach_recalls_beyond_its_thresholds():
    """Scores so high that more than a quarter of the labels exceed 0.99999: no 25% point."""
    bounds, targets = realistic()
    saturated = ScoreBounds(
        *(array + 20 for array in (bounds.clean, bounds.defended, bounds.lower, bounds.upper))
    )
    assert np.isnan(paper_protocol(saturated, targets, "defended").precision_at[0.25])
    assert precision_recall_curve(saturated, targets, "defended").precision_at(0.25) > 0.9


def test_the_papers_lists_hold_45_thresholds():
    listed = [t for thresholds in PAPER_THRESHOLDS.values() for t in thresholds]
    assert len(listed) == len(set(listed)) == 45


def test_coupled_curves_are_thinned_to_the_points_asked_for():
    bounds, targets = realistic()
    curve = precision_recall_curve(bounds, targets, "exact", points=20)
    assert len(curve.thresholds) <= 20
    full = precision_recall_curve(bounds, targets, "exact", points=10**6)
    assert curve.paper_average_precision() == pytest.approx(
        full.paper_average_precision(), abs=0.03
    )


@st.composite
def partly_proved(draw):
    """Bounds of which some are infinite, in two floating-point types, and a rising grid."""
    bounds, targets = bounds_of(draw(tables()))
    assume(targets.any())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.2, 1.0]))
    lower = np.where(rng.random(bounds.lower.shape) < share, -np.inf, bounds.lower)
    upper = np.where(rng.random(bounds.upper.shape) < share, np.inf, bounds.upper)
    some = st.lists(thresholds | st.sampled_from([0.3, np.inf]), unique=True, max_size=5)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    bounds = ScoreBounds(bounds.clean, bounds.defended, lower.astype(dtype), upper)
    return bounds, targets.astype(bool), np.array([-np.inf, *sorted(draw(some))])


@given(partly_proved())
def test_frontiers_are_the_regions_that_no_other_beats(case):
    bounds, true, grid = case
    order = true.sum(axis=1).argsort(kind="stable")
    blocks = list(frontiers(bounds, true, grid))
    images = [(b, i) for b in blocks for i in range(len(b.at.misses))]
    certificates = [certify(bounds, true, t) for t in grid]
    errors = [errors_by_region(certificate.vulnerable, true) for certificate in certificates]

    def check(choices, i, point, misses, alarms):
        for j in range(choices.misses.shape[1]):
            most = max((a for m, a in zip(misses, alarms, strict=True) if m >= j), default=None)
            expected = (0, 0) if most is None else (j, most)
            assert (choices.misses[i, j, point], choices.alarms[i, j, point]) == expected

    for (block, i), image in zip(images, order, strict=True):
        counts = [(misses[image], alarms[image]) for misses, alarms in errors]
        for point, (misses, alarms) in enumerate(counts):
            check(block.at, i, point, misses, alarms)
        for point, ((more_alarms, fewer_alarms), (fewer_misses, more_misses)) in enumerate(
            zip(pairwise(c[1] for c in counts), pairwise(c[0] for c in counts), strict=True)
        ):
            check(block.least, i, point, fewer_misses, fewer_alarms)
            check(block.most, i, point, more_misses, more_alarms)


@pytest.mark.parametrize("setting", COUPLED)
@given(case=partly_proved())
def test_coupled_settings_are_the_literal_algorithms_on_the_grid(setting, case):
    bounds, true, grid = case
    measured = measure(bounds, true, setting, grid)
    precision, recall = zip(*(operating_point(bounds, true, setting, t) for t in grid), strict=True)
    assert measured.precision.tolist() == list(precision)
    assert measured.recall.tolist() == np.minimum.accumulate(recall).tolist()


def every_threshold(bounds):
    """All at which any label's vulnerability changes, rising."""
    return np.unique(np.concatenate([[-np.inf], bounds.lower.ravel(), bounds.upper.ravel()]))


@pytest.mark.parametrize("setting", COUPLED)
@given(case=partly_proved())
def test_between_the_thresholds_of_the_grid_the_limits_hold(setting, case):
    check_limits(*case, setting)


@pytest.mark.parametrize("setting", COUPLED)
@pytest.mark.parametrize("seed", range(20))
def test_limits_hold_for_a_few_images_with_many_labels(setting, seed):
    bounds, targets = realistic(images=3, masks=5, classes=12, seed=seed)
    targets[:, 0] = 1
    check_limits(bounds, targets.astype(bool), np.array([-np.inf, -3.0, -1.0, 1.0, 3.0]), setting)


def check_limits(bounds, true, grid, setting):
    """Precision and recall at every threshold lie within the limits between its neighbours."""
    measured = measure(bounds, true, setting, grid)
    fine = np.union1d(every_threshold(bounds), grid)
    points = [operating_point(bounds, true, setting, t) for t in fine]
    recalls = np.minimum.accumulate([recall for _, recall in points])
    for i, (low, high) in enumerate(pairwise(grid)):
        for t, (precision, _), recall in zip(fine, points, recalls, strict=True):
            if low <= t <= high:
                assert measured.least_precision[i] <= precision <= measured.most_precision[i]
                assert measured.least_recall[i] <= recall <= measured.recall[i]


@pytest.mark.parametrize("setting", COUPLED)
@pytest.mark.parametrize("seed", range(5))
def test_the_range_of_average_precision_covers_all_that_is_possible(setting, seed):
    """Between any two recalls where a limit begins or ends: the extremes of all limits there."""
    bounds, targets = realistic(images=10, masks=4, seed=seed)
    grid = np.array([-np.inf, *np.linspace(-4, bounds.upper.max(), 12)])
    measured = measure(bounds, targets.astype(bool), setting, grid)
    boxes = list(
        zip(
            *(measured.least_recall, measured.recall[:-1]),
            *(measured.least_precision, measured.most_precision),
            strict=True,
        )
    )
    edges = sorted({0.25, *(edge for box in boxes for edge in box[:2] if edge > 0.25)})
    least = most = 0.0
    for start, end in pairwise(edges):
        here = [box[2:] for box in boxes if box[0] <= start and end <= box[1]]
        least += (end - start) * min(low for low, _ in here) / 0.75
        most += (end - start) * max(high for _, high in here) / 0.75
    assert measured.average_precision_range() == pytest.approx((least, most))
    assert least < most


@pytest.mark.parametrize("setting", COUPLED)
@given(case=partly_proved(), points=st.integers(2, 6))
def test_the_error_bounds_what_the_grid_leaves_out(setting, case, points):
    bounds, true, _ = case
    coarse = precision_recall_curve(bounds, true, setting, points=points)
    assert len(coarse.thresholds) <= points
    fine = through(bounds, true, setting, np.union1d(every_threshold(bounds), coarse.thresholds))
    difference = coarse.paper_average_precision() - fine.paper_average_precision()
    assert abs(difference) <= coarse.error + 1e-12


def through(bounds, true, setting, grid):
    """The curve through the thresholds of a rising grid, one by one."""
    points = [operating_point(bounds, true, setting, t) for t in grid]
    precision, recall = np.array(points).T
    return Curve(grid[::-1], precision[::-1], np.minimum.accumulate(recall)[::-1])


@pytest.mark.parametrize("setting", COUPLED)
def test_the_error_falls_with_the_number_of_points(setting):
    bounds, targets = realistic(images=40, masks=4, classes=8)
    fine = through(bounds, targets, setting, every_threshold(bounds))
    errors = []
    for points in (8, 16, 32, 64):
        curve = precision_recall_curve(bounds, targets, setting, points=points)
        difference = curve.paper_average_precision() - fine.paper_average_precision()
        assert abs(difference) <= curve.error
        errors.append(curve.error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1
    for exact in EXACT_AT_EVERY_THRESHOLD:
        assert precision_recall_curve(bounds, targets, exact).error == 0


@pytest.mark.parametrize("block", [1, 500, 3000])
def test_curves_do_not_depend_on_how_many_images_are_handled_at_a_time(block):
    bounds, targets = realistic()
    curves = [precision_recall_curve(bounds, targets, setting) for setting in SETTINGS]
    with patch("patchdemux.inputs.BLOCK", block):
        again = [precision_recall_curve(bounds, targets, setting) for setting in SETTINGS]
    for one, other in zip(curves, again, strict=True):
        np.testing.assert_array_equal(one.thresholds, other.thresholds)
        np.testing.assert_array_equal(one.precision, other.precision)
        np.testing.assert_array_equal(one.recall, other.recall)
        assert one.error == other.error


@pytest.mark.parametrize("block", [1, 500, 10**6])
def test_bad_bounds_are_named_however_many_images_are_checked_at_a_time(block):
    bounds, _ = realistic()
    outside, missing = bounds.lower.copy(), bounds.lower.copy()
    outside[59, 2, 3] = 100
    missing[[7, 58], 0, 0] = np.nan
    with patch("patchdemux.inputs.BLOCK", block):
        with pytest.raises(ValueError, match="the defended score at image 59, region 2, class 3"):
            ScoreBounds(None, bounds.defended, outside, bounds.upper)
        with pytest.raises(
            ValueError, match=r"2 of its scores are not, .* nan at .* = \(7, 0, 0\)"
        ):
            ScoreBounds(None, bounds.defended, missing, bounds.upper)


def test_errors():
    bounds, targets = realistic()
    bare = ScoreBounds(None, bounds.defended, bounds.lower, bounds.upper)
    with pytest.raises(ValueError, match="needs the clean scores, which these bounds lack"):
        precision_recall_curve(bare, targets, "undefended")
    with pytest.raises(ValueError, match="needs at least one true label"):
        precision_recall_curve(bounds, 0 * targets, "defended")
    with pytest.raises(ValueError, match="needs at least one true label"):
        mean_average_precision(bounds, 0 * targets, "defended")
    with pytest.raises(ValueError, match=r"but not for .exact"):
        average_precision_per_class(bounds, targets, "exact")
    with pytest.raises(ValueError, match=r"setting must be one of .* but got .certain."):
        paper_protocol(bounds, targets, "certain")
    with pytest.raises(ValueError, match="couples misses and false alarms"):
        pseudo_scores(bounds, targets, "exact")
    with pytest.raises(ValueError, match="points must be at least 2, but got 1"):
        precision_recall_curve(bounds, targets, "exact", points=1)
