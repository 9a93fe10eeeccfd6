"""Deciding with few pairs: the same labels as from all pairs, and how many pairs that takes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from patchdemux import (
    Classifier,
    DoubleMasking,
    Engine,
    MaskSet,
    PatchDemux,
    PatchThreat,
    ScoreBounds,
    predict,
)
from patchdemux.bounds import Center, Guard, median
from patchdemux.defenses import Defense
from patchdemux.defenses.schedule import MOST, Schedule
from tables import GRID, symmetric_table, tables, thresholds
from tiny import TinyNet, tiny_images

centers = st.sampled_from(Center.__args__)
guards = st.sampled_from(Guard.__args__)
SIZE = (6, 5)
THREAT = PatchThreat(2, 1)


def singles_of(table):
    return np.diagonal(table, axis1=1, axis2=2).swapaxes(1, 2)


def center_of(table, center, clean):
    return median(singles_of(table)) if center == "median" else clean


def run(table, threshold, center=None, guard="both", max_pairs=None, budget=8):
    """The schedule at its end, fed from a table of all scores; and its rounds."""
    center = median(singles_of(table)) if center is None else center
    schedule = Schedule(singles_of(table), center, threshold, guard, max_pairs)
    seen, rounds = set(), []
    while len(jobs := schedule.next_views(budget)):
        views = {(image, *sorted(pair)) for image, *pair in jobs.tolist()}
        assert len(views) == len(jobs)
        assert not views & seen, "a view was run twice"
        assert (jobs[:, 1] != jobs[:, 2]).all(), "single masks are known"
        seen |= views
        rounds.append(np.unique(jobs[:, 0], return_counts=True)[1])
        schedule.learn(jobs, table[tuple(jobs.T)])
    assert len(seen) == schedule.views().sum()
    return schedule, rounds


def pairs_run(table, threshold):
    """Pairs of the only image until all its classes are decided."""
    return int(run(np.array(table, np.float32)[None], threshold, budget=1)[0].views()[0])


@given(tables(), thresholds, centers, guards, st.integers(1, 20), st.integers(0, 99))
def test_labels_are_those_from_all_pairs(drawn, threshold, center, guard, budget, seed):
    table, _ = drawn
    clean = np.random.default_rng(seed).choice(GRID, table[:, 0, 0].shape)
    bounds = ScoreBounds.from_pairs(table, clean, center=center, guard=guard)
    schedule, _ = run(table, threshold, center_of(table, center, clean), guard, budget=budget)
    lower, upper = schedule.intervals()
    labels = predict(bounds, threshold)
    np.testing.assert_array_equal(lower > threshold, labels)
    np.testing.assert_array_equal(upper > threshold, labels)
    masks = table.shape[1]
    assert (schedule.views() <= masks * (masks - 1) // 2).all()


@given(tables(), thresholds)
def test_labels_are_those_of_the_published_algorithm(drawn, threshold):
    table, _ = drawn
    lower, _ = run(table, threshold)[0].intervals()
    for scores, labels in zip(table, lower > threshold, strict=True):
        classes = np.moveaxis(scores, 2, 0).tolist()
        assert labels.tolist() == reference.demux_inference(classes, threshold)


@given(tables(), thresholds, centers, guards, st.integers(0, 12), st.integers(0, 99))
def test_intervals_are_exactly_what_the_views_leave_open(
    drawn, threshold, center, guard, max_pairs, seed
):
    """Their ends are the defended scores if all views not run had very low or very high scores."""
    table, _ = drawn
    clean = np.random.default_rng(seed).choice(GRID, table[:, 0, 0].shape)
    middle = center_of(table, center, clean)
    schedule, _ = run(table, threshold, middle, guard, max_pairs)
    lower, upper = schedule.intervals()
    known = np.stack([search.known for search in schedule.searches])[..., None]
    for end, unknown in ((lower, -1e9), (upper, 1e9)):
        filled = np.where(known, table, np.float32(unknown))
        bounds = ScoreBounds.from_pairs(filled, middle, center="undefended", guard=guard)
        np.testing.assert_array_equal(end, bounds.defended)
    defended = ScoreBounds.from_pairs(table, clean, center=center, guard=guard).defended
    assert ((lower <= defended) & (defended <= upper)).all()
    assert (schedule.views() <= max_pairs).all()
    for search, low, high, views in zip(
        schedule.searches, lower, upper, schedule.views(), strict=True
    ):
        straddles = np.flatnonzero((low <= threshold) & (high > threshold))
        assert search.undecided.tolist() == straddles.tolist()
        assert views == max_pairs or not len(straddles)


def test_the_number_of_pairs_in_cases_made_by_hand():
    masks = 5
    low = np.full((masks, masks, 1), -1.0)
    assert pairs_run(low, 0) == 0  # the first round is unanimous
    assert pairs_run(-low, 0) == 0

    row = low.copy()
    row[2] = row[:, 2] = 1
    assert pairs_run(row, 0) == masks - 1  # a unanimous row is run to its end, and no other
    assert pairs_run(-row, 0) == masks - 1
    assert pairs_run(np.repeat(row, 7, axis=2), 0) == masks - 1  # once for all classes

    single = low.copy()
    single[2, 2] = 1
    assert pairs_run(single, 0) == 1  # one contrary score ends a row
    assert pairs_run(np.repeat(single, 7, axis=2), 0) == 1

    two = low.copy()
    two[1, 1] = two[2, 2] = 1
    assert pairs_run(two, 0) == 1  # and a row of each of its masks

    only = np.full((2, 2, 1), -1.0)
    only[0, 0] = 1
    assert pairs_run(only, 0) == 1  # no other pair is left to run
    assert pairs_run(np.ones((1, 1, 3)), 0) == 0


def test_thresholds_are_compared_exactly():
    tenth = np.float32(0.1)  # a little more than 0.1
    table = np.full((1, 3, 3, 1), tenth)
    for threshold, label in ((0.1, True), (float(tenth), False)):
        lower, upper = run(table, threshold)[0].intervals()
        assert (lower > np.float64(threshold)).item() is label
        assert (upper > np.float64(threshold)).item() is label


@pytest.mark.parametrize("threshold", [-1e39, 1e39])
def test_thresholds_and_scores_at_the_ends_of_float32(threshold):
    table = symmetric_table(np.random.default_rng(0), 2, 5, 3) * np.float32(1e38)
    assert run(table, threshold)[0].views().sum() == 0
    run(table, 0.0)


def test_batches_are_wide():
    table = symmetric_table(np.random.default_rng(0), 20, 12, 6)
    for budget in (1, 20, 64, 1000):
        _, rounds = run(table, -0.75, budget=budget)
        for views in rounds:
            assert views.sum() <= max(budget, len(views))
            assert views.max() <= max(1, min(budget // len(views), MOST))
    alone = sum(run(table[i : i + 1], -0.75, budget=1)[0].views().sum() for i in range(20))
    for budget in (1, 20, 160):
        together, rounds = run(table, -0.75, budget=budget)
        assert together.views().sum() <= 1.25 * alone  # even where scores are noise
    assert len(rounds) <= 20


def demux_of(model, defense, **options):
    return PatchDemux(model, THREAT, defense, image_size=SIZE, **options)


@given(st.integers(0, 10**6), centers, guards, st.sampled_from([0.01, 0.4, 0.5, 0.9]))
def test_predictions_of_the_defended_classifier(seed, center, guard, threshold):
    model = TinyNet(SIZE, 4, seed)
    defense = DoubleMasking((3, 2), center=center, guard=guard)
    demux, images = demux_of(model, defense), tiny_images(3, SIZE, seed)
    at = np.log(threshold) - np.log1p(-threshold)
    expected = predict(demux.bounds(images), at)
    model.views = 0
    decision = demux.decide(images, threshold)
    assert decision.decided.all()
    assert model.views == decision.views.sum()
    assert (decision.views <= defense.views(SIZE, THREAT)).all()
    np.testing.assert_array_equal(decision.labels, expected)
    np.testing.assert_array_equal(demux.predict(images, threshold), expected)


@pytest.mark.parametrize("center", ["median", "undefended"])
def test_guaranteed_latency(center):
    defense = DoubleMasking((3, 2), center=center)
    first = 6 + (center == "undefended")
    open_before = None
    for max_views in range(first, defense.views(SIZE, THREAT) + 1):
        model = TinyNet(SIZE, 30, 3)
        demux, images = demux_of(model, defense), tiny_images(4, SIZE, 0)
        decision = demux.decide(images, 0.5, max_views)
        assert decision.views.max() <= max_views
        assert model.views == decision.views.sum()
        straddles = (decision.lower <= 0) & (decision.upper > 0)
        np.testing.assert_array_equal(~decision.decided, straddles)
        labels = demux.predict(images).numpy()
        np.testing.assert_array_equal(decision.labels[decision.decided], labels[decision.decided])
        assert (decision.views[straddles.any(axis=1)] == max_views).all()
        if open_before is None:
            assert straddles.any()
        open_before = straddles.sum()
    assert open_before == 0
    with pytest.raises(
        ValueError, match=f"max_views must be at least {first}, but got {first - 1}"
    ):
        demux.decide(images, 0.5, first - 1)


@pytest.mark.parametrize(("count", "views", "calls"), [(16, 888, 24), (1, 54, 8)])
def test_views_and_model_calls_of_a_batch_of_images(count, views, calls):
    """A guard against regressions that no clock can give.

    The published procedure takes 405 views per image here, an order that knows all scores 52, and
    this one 56. Where two pairs promise the same, rounding may decide: that is worth a few views.
    """
    size = (32, 32)
    model = TinyNet(size, 10, 0)
    demux = PatchDemux(model, PatchThreat(4, 4), batch_size=64)
    images = tiny_images(16, size, 0)[:count]
    decision = demux.decide(images)
    assert model.views == decision.views.sum()
    assert 36 * count < model.views <= 1.02 * views
    assert model.calls <= calls + 1
    assert model.largest == min(36 * count, 64)


class Whole(Defense):
    """Shows the classifier whole images, and proves nothing."""

    tells = True

    def bounds(self, engine, images, threat):
        scores = engine.scores(images)
        unproved = np.full_like(scores[:, None], np.inf)
        return ScoreBounds(scores, scores, -unproved, unproved)

    def views(self, image_size, threat):
        return 1 if self.tells else None


def test_a_defense_that_only_gives_bounds_decides_through_them():
    demux, images = demux_of(TinyNet(SIZE, 4, 0), Whole()), tiny_images(3, SIZE, 0)
    decision = demux.decide(images, 0.5, max_views=1)
    np.testing.assert_array_equal(decision.labels, demux(images) > 0)
    np.testing.assert_array_equal(decision.lower, demux(images))
    assert decision.decided.all()
    assert decision.views.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="needs 1 views per image, but max_views is 0"):
        demux.decide(images, 0.5, max_views=0)
    demux.defense.tells = False
    assert demux.decide(images).views is None
    with pytest.raises(ValueError, match="unknown number of views per image, but max_views is 9"):
        demux.decide(images, 0.5, max_views=9)


@pytest.mark.parametrize("fill", [0.0, 0.5])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_the_engine_runs_any_views_of_any_images(fill, batch_size):
    masks = MaskSet.covering(SIZE, THREAT, (3, 2))
    images = tiny_images(4, SIZE, 1)
    engine = Engine(Classifier(TinyNet(SIZE, 3, 0)), fill=fill, batch_size=batch_size)
    table = engine.masked_scores(images, masks.dense(), masks.unions())
    rng = np.random.default_rng(0)
    image, view = np.sort(rng.integers(0, 4, 30)), rng.integers(0, len(masks.unions()), 30)
    jobs = np.concatenate([image[:, None], masks.unions()[view]], axis=1)
    scores = engine.masked(images, masks.dense())(jobs)
    np.testing.assert_array_equal(scores, table[image, view])
    shuffled = rng.permutation(30)
    scores = engine.masked(images, masks.dense())(jobs[shuffled])
    np.testing.assert_array_equal(scores, table[image, view][shuffled])


def test_a_score_that_is_not_finite_is_named_in_any_round():
    def model(x):
        seen = x.flatten(1).sum(dim=1, keepdim=True)
        return torch.where(seen < 29, torch.nan, seen)

    engine = Engine(Classifier(model), batch_size=2)
    scores_of = engine.masked(torch.ones(2, 1, *SIZE), np.eye(2, 30, dtype=bool).reshape(2, *SIZE))
    jobs = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 1]])
    with pytest.raises(
        ValueError, match=r"gave nan as score of image 1, class 0 \(masked view 1\)"
    ):
        scores_of(jobs)
