"""Attacks: they find what brute force finds, stay inside their patch, and break false certificates."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, DoubleMasking, Engine, PatchDemux, PatchThreat
from patchdemux.attack import (
    Attack,
    attack,
    load_patch,
    put,
    save_patch,
    universal_patch,
    violations,
)
from patchdemux.attack.goal import Goal
from patchdemux.attack.places import paste, places_in, weakest_regions
from patchdemux.attack.victims import decided
from patchdemux.bounds import ScoreBounds
from patchdemux.runtimes import make_runtime
from test_brute_force import HoledMasking
from tiny import TinyNet, every_attack, tiny_images

SIZE = (4, 4)
THREAT = PatchThreat(1, 2)


def tiny(seed, defense=None, **options):
    """A defended tiny net, images, and what it says of them as the truth."""
    defense = defense or DoubleMasking((2, 2), **options)
    demux = PatchDemux(TinyNet(SIZE, 3, seed), THREAT, defense, batch_size=64)
    images = tiny_images(3, SIZE, seed + 1)
    return demux, images, demux.bounds(images).defended > 0


def by_brute_force(demux, images, goal, defended, place):
    """The most errors of any content at a place."""
    most = []
    for i, image in enumerate(images):
        own = goal.of(np.full(4, i))
        attacked = dict(every_attack(image, THREAT))[place]
        bounds = demux.bounds(attacked)
        most.append(own.errors(bounds.defended if defended else bounds.clean).max())
    return np.array(most)


@pytest.mark.parametrize("method", ["random", "square"])
@pytest.mark.parametrize("defended", [True, False])
def test_search_finds_what_brute_force_finds(method, defended):
    """Contents between black and white may do more on these nets, but never less."""
    found_any = 0
    for seed, place, objective in (
        (13, (3, 2), "errors"),
        (21, (1, 0), "hide"),
        (38, (1, 0), "both"),
    ):
        demux, images, truth = tiny(seed)
        how = Attack(objective, method, place, steps=30, restarts=2)
        result = attack(demux, images, truth, how, defended=defended)
        most = by_brute_force(demux, images, Goal(objective, truth, 0.0), defended, place)
        assert (result.errors >= most).all()
        assert result.violations == ()
        found_any += most.sum()
    assert found_any > 7  # or it shows nothing


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    method=st.sampled_from(["gradient", "random", "square"]),
    place=st.sampled_from(["weakest", "random", "every"]),
    objective=st.sampled_from(["hide", "invent", "both", "errors"]),
    center=st.sampled_from(["median", "undefended"]),
    guard=st.sampled_from(["both", "recall", "precision"]),
)
def test_no_attack_beats_a_true_certificate(seed, method, place, objective, center, guard):
    demux, images, truth = tiny(seed, center=center, guard=guard)
    bounds = demux.bounds(images)
    how = Attack(objective, method, place, places=2, steps=4, refresh=2, seed=seed)
    result = attack(demux, images, truth, how, bounds=bounds)
    assert result.violations == ()
    # What it says is what the real classifier answers, and the patch is all that was changed.
    np.testing.assert_array_equal(result.scores, demux.bounds(result.images).defended)
    np.testing.assert_array_equal(result.scores > 0, demux.predict(result.images))
    outside = torch.ones_like(images, dtype=torch.bool)
    for own, (top, left) in zip(outside, result.places, strict=True):
        own[:, top : top + THREAT.height, left : left + THREAT.width] = False
    assert torch.equal(result.images[outside], images[outside])
    assert torch.equal(result.images, paste(images, result.places, result.patches))
    assert 0 <= result.images.min() <= result.images.max() <= 1
    goal = Goal(objective, truth, 0.0)
    assert (goal.merit(result.scores) >= goal.merit(bounds.defended)).all()


@pytest.mark.parametrize("method", ["gradient", "random"])
def test_a_planted_false_certificate_is_broken(method):
    """Masks that are one row and column too small: certified labels turn, and it is found."""
    broken, flips = [], 0
    for seed in range(5):
        demux, images, truth = tiny(seed, HoledMasking((2, 2)))
        bounds = demux.bounds(images)
        how = Attack("errors", method, "weakest", places=4, restarts=2, steps=8, seed=seed)
        result = attack(demux, images, truth, how, bounds=bounds)
        broken += result.violations
        for violation, patch in zip(result.violations, result.broken, strict=True):
            image = images[violation.image : violation.image + 1]
            again = paste(image, [(violation.row, violation.column)], patch[None])
            score = demux.bounds(again).defended[0, violation.label]
            assert score == pytest.approx(violation.score, abs=1e-4)
            assert not violation.lower <= score <= violation.upper
            worst = bounds.lower.min(axis=1)[violation.image, violation.label]
            flips += bool(score <= 0 < worst)
    assert len(broken) > 2
    assert any(not violation.regions for violation in broken)
    assert flips > 0  # labels whose certificate held at every region


def test_the_same_seed_gives_the_same_patches():
    demux, images, truth = tiny(0)
    for method in ("gradient", "square", "random"):
        how = Attack("both", method, "random", places=2, steps=5, seed=3)
        one, two = (attack(demux, images, truth, how) for _ in range(2))
        assert torch.equal(one.images, two.images)
        other = attack(demux, images, truth, Attack("both", method, "random", steps=5, seed=4))
        assert not torch.equal(one.patches, other.patches)


def test_the_slope_is_that_of_automatic_differentiation_through_the_views():
    model, images = TinyNet(SIZE, 3, 0), tiny_images(2, SIZE, 1)
    engine = Engine(Classifier(model), fill=0.5, batch_size=2)
    hidden = np.zeros((3, *SIZE), bool)
    hidden[1, :2], hidden[2, :, 3] = True, True
    jobs = np.array([[0, 0, 0], [0, 1, 2], [1, 2, 2], [1, 1, 1], [0, 1, 1]])
    weights = torch.arange(15.0).reshape(5, 3)
    slope = engine.gradient(images, hidden, jobs, lambda s, some: weights[some] * s**2)
    leaf = images.clone().requires_grad_()
    for (owner, *masks), weight in zip(jobs.tolist(), weights, strict=True):
        cover = torch.from_numpy(hidden[masks].any(axis=0))
        scores = model(torch.where(cover, torch.tensor(0.5), leaf[owner])[None])[0]
        (weight * scores**2).sum().backward()
    torch.testing.assert_close(slope, leaf.grad)
    assert torch.is_grad_enabled()
    # The second backward passes left gradients on the weights; the engine's own must not.
    fresh = TinyNet(SIZE, 3, 0)
    Engine(Classifier(fresh)).gradient(images, hidden, jobs, lambda s, some: s)
    assert all(weight.grad is None for weight in fresh.parameters())


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    center=st.sampled_from(["median", "undefended"]),
    guard=st.sampled_from(["both", "recall", "precision"]),
)
def test_the_deciding_view_has_the_defended_score(seed, center, guard):
    demux, images, _ = tiny(seed, center=center, guard=guard)
    found = decided(demux, images)
    defended = demux.bounds(images).defended
    assert (found.view >= 0).all()
    for i, c in np.ndindex(*defended.shape):
        cover = torch.from_numpy(found.hidden[found.masks[found.view[i, c]]].any(axis=0))
        view = torch.where(cover, torch.tensor(0.0), images[i])[None]
        assert demux.classifier(view)[0, c].item() == defended[i, c]


def test_the_weakest_region_is_the_one_with_the_most_to_gain():
    lower = np.array([[[1.0, 2.0], [-1.0, 3.0], [-1.0, -2.0], [-9.0, 4.0]]])
    bounds = ScoreBounds(None, np.full((1, 2), 5.0), lower, np.full_like(lower, 9.0))
    order = weakest_regions(bounds, Goal("hide", np.array([[True, True]]), 0.0))
    assert order.tolist() == [[2, 3, 1, 0]]
    only_second = Goal("hide", np.array([[True, True]]), 0.0, np.array([[False, True]]))
    assert weakest_regions(bounds, only_second).tolist() == [[2, 0, 1, 3]]


def test_places_reach_one_pixel_beyond_a_region_and_never_out_of_the_image():
    boxes = np.tile([2, 0, 3, 4], (500, 1, 1))
    random = np.random.default_rng(0)
    drawn = places_in(boxes, np.array([6, 9]), PatchThreat(2, 2), random)[:, 0]
    assert set(drawn[:, 0].tolist()) == {1, 2, 3, 4}
    assert set(drawn[:, 1].tolist()) == {0, 1, 2, 3}
    low = places_in(boxes, np.array([2, 1]), PatchThreat(2, 2), random)
    assert low.max(axis=(0, 1)).tolist() == [2, 1]


def test_a_violation_is_told_with_what_was_proved():
    boxes = np.array([[0, 0, 3, 4], [1, 0, 3, 4]])
    lower = np.array([[[1.0, 1.0], [2.0, 0.0]]])
    bounds = ScoreBounds(None, np.array([[3.0, 1.5]]), lower, np.full_like(lower, 4.0))
    scores = np.array([[1.5, 9.0]])
    both, one, none = (
        violations(bounds, scores, np.array([place]), boxes, PatchThreat(2, 2))
        for place in ((1, 0), (0, 1), (3, 3))
    )
    assert [(v.label, v.regions, v.lower, v.upper) for v in both] == [
        (0, (0, 1), 2.0, 4.0),
        (1, (0, 1), 1.0, 4.0),
    ]
    assert [(v.label, v.regions, v.score) for v in one] == [(1, (0,), 9.0)]
    assert [(v.label, v.regions, v.lower) for v in none] == [(1, (), 0.0)]


def test_labels_that_do_not_matter_are_left_alone():
    demux, images, truth = tiny(2)
    none = np.zeros_like(truth)
    how = Attack("errors", "random", "random", steps=5)
    for attempt in (how, Attack("errors", place="random", steps=3, refresh=1)):
        result = attack(demux, images, truth, attempt, labels=none)
        assert result.errors.tolist() == [0, 0, 0]
        assert torch.equal(result.images, images)
    by_gradient = Attack("errors", place="random", steps=2)
    patch = universal_patch(demux, images, truth, by_gradient, labels=none)
    assert put(demux, images, truth, patch, how, labels=none).errors.tolist() == [0, 0, 0]


def test_a_universal_patch_is_saved_and_used_again(tmp_path):
    demux, images, truth = tiny(1)
    how = Attack("errors", place="random", places=2, steps=8)
    patch = universal_patch(demux, images, truth, how)
    assert torch.equal(patch, universal_patch(demux, images, truth, how))
    save_patch(tmp_path / "patch.png", patch)
    again = load_patch(tmp_path / "patch.png", THREAT)
    assert torch.equal(again, patch)
    one, two = (put(demux, images, truth, content, how) for content in (patch, again))
    assert torch.equal(one.images, two.images)
    assert one.violations == ()
    assert all(torch.equal(own, patch) for own in one.patches)
    np.testing.assert_array_equal(one.scores, demux.bounds(one.images).defended)
    color = torch.arange(24).reshape(3, 4, 2) / 255
    save_patch(tmp_path / "color.png", color)
    assert torch.equal(load_patch(tmp_path / "color.png", PatchThreat(4, 2)), color)


def test_another_runtime_is_attacked_by_the_gradients_of_torch():
    """And judged by what it answers itself."""
    torch.manual_seed(0)
    classifier = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    images = tiny_images(3, SIZE, 0)
    truth = Engine(classifier).scores(images) > 0
    ours, theirs = (
        attack(
            PatchDemux(make_runtime(classifier, name), THREAT, DoubleMasking((2, 2))),
            images,
            truth,
            Attack("errors", place=(1, 1), steps=4),
        )
        for name in ("torch", "onnx")
    )
    assert torch.equal(ours.patches, theirs.patches)
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)


def no_gradients(images):
    return torch.from_numpy(images.numpy().mean(axis=(2, 3)).repeat(3, axis=1))


DEMUX, IMAGES, TRUTH = tiny(0)
BLIND = PatchDemux(no_gradients, THREAT, DoubleMasking((2, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Attack("destroy"), r"objective must be one of \('hide', .* but got 'destroy'"),
        (lambda: Attack(method="magic"), "method must be one of .* but got 'magic'"),
        (lambda: Attack(steps=-1), "steps must be at least 0, but got -1"),
        (lambda: Attack(places=0), "places must be at least 1, but got 0"),
        (lambda: Attack(expectation=0), "expectation must be at least 1, but got 0"),
        (lambda: Attack(step_size=2), "step_size must be above 0 and at most 1, but got 2"),
        (lambda: Attack(momentum=1), "momentum must be at least 0 and below 1, but got 1"),
        (lambda: Attack(place="best"), r"place must be one of .* or a tuple, but got 'best'"),
        (
            lambda: attack(DEMUX, IMAGES, TRUTH, Attack(place=(4, 0))),
            r"fits with its top left corner at rows 0 to 3 and columns 0 to 2 .* got \(4, 0\)",
        ),
        (
            lambda: attack(DEMUX, IMAGES, TRUTH, labels=TRUTH[:1]),
            r"labels must have one boolean per image and class, .* bool of shape \(1, 3\)",
        ),
        (lambda: attack(DEMUX, IMAGES * 2, TRUTH), r"images must lie in \[0, 1\]"),
        (lambda: attack(DEMUX, IMAGES, TRUTH[:, :2]), "targets must have one 0 or 1 per image"),
        (
            lambda: attack(BLIND, IMAGES, TRUTH),
            r'gives no gradients .* attack it with method="square" or method="random"',
        ),
        (
            lambda: universal_patch(DEMUX, IMAGES, TRUTH, Attack(method="square")),
            "a universal patch needs method=\"gradient\", but got 'square'",
        ),
        (
            lambda: put(DEMUX, IMAGES, TRUTH, torch.zeros(1, 2, 2), Attack()),
            r"\(channel, height, width\) = \(1, 1, 2\), but has shape \(1, 2, 2\)",
        ),
        (lambda: load_patch("no.png", THREAT), "there is no patch no.png"),
    ],
)
def test_what_cannot_be_is_refused_with_a_clear_text(call, message):
    with pytest.raises((ValueError, OSError), match=message):
        call()


def test_a_patch_of_another_size_is_refused(tmp_path):
    save_patch(tmp_path / "p.png", torch.zeros(1, 3, 3))
    with pytest.raises(ValueError, match="has 3 x 3 pixels, but the threat is a patch of 1 x 2"):
        load_patch(tmp_path / "p.png", THREAT)
    with pytest.raises(ValueError, match="PNG has 1 or 3 channels, but the patch has 2"):
        save_patch(tmp_path / "p.png", torch.zeros(2, 3, 3))


def test_a_model_without_gradients_is_attacked_by_search():
    truth = BLIND.bounds(IMAGES).defended > 0
    how = Attack("errors", "square", "random", steps=3)
    assert attack(BLIND, IMAGES, truth, how).violations == ()


def test_the_model_is_left_as_it_was():
    model = copy.deepcopy(DEMUX)
    model.train()
    attack(model, IMAGES, TRUTH, Attack(steps=2))
    assert model.classifier.model.training
    assert all(weight.grad is None for weight in model.parameters())
