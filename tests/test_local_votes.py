"""Defenses on local scores: every attack, every vote, PatchGuard literally, and what is refused."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference
from patchdemux import Classifier, PatchDemux, PatchThreat, certified
from patchdemux.defenses.local_votes import LocalVotes, RobustMasking, windows
from patchdemux.models.local import local_resnet
from patchdemux.receptive_field import ReceptiveField, measured
from tiny import TinyLocalNet, every_attack, tiny_images

SIZE = (5, 5)
KINDS = [LocalVotes, RobustMasking]
NETS = {
    "overlapping windows": {"kernel": 2},
    "windows side by side": {"kernel": 2, "stride": 2},
    "padded": {"kernel": 3, "stride": 2, "padding": 1},
    "pixels between windows": {"kernel": 1, "stride": 2},
}


def violations(demux, field, images):
    """Every defended score of an attacked image outside of an interval that should hold it."""
    bounds = demux.bounds(images)
    regions = field.pixels(field.regions(demux.threat), demux.threat).boxes.tolist()
    assert len(regions) == bounds.lower.shape[1]
    found = []
    for i, image in enumerate(images):
        places, attacked = zip(*every_attack(image, demux.threat), strict=True)
        scores = demux.bounds(torch.cat(attacked)).defended.reshape(len(places), -1, 2)
        for (top, left), own in zip(places, scores, strict=True):
            bottom, right = top + demux.threat.height, left + demux.threat.width
            holders = [
                r
                for r, (row, column, height, width) in enumerate(regions)
                if row <= top
                and column <= left
                and bottom <= row + height
                and right <= column + width
            ]
            assert holders
            for r in holders:
                if (own < bounds.lower[i, r]).any() or (own > bounds.upper[i, r]).any():
                    found.append((i, top, left, r))
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    threat=st.sampled_from([PatchThreat(1, 1), PatchThreat(2, 1), PatchThreat(1, 2)]),
    net=st.sampled_from(list(NETS)),
    ends=st.sampled_from([(-2, 3), (0, 2), (-1, 0.75), (0.5, 4), (-3, -0.5)]),
)
def test_no_attack_leaves_the_bounds(kind, seed, threat, net, ends):
    demux = PatchDemux(TinyLocalNet(2, seed, **NETS[net]), threat, kind("local", *ends))
    _, field = measured(demux.classifier, "local", SIZE)
    assert violations(demux, field, tiny_images(2, SIZE, seed)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_finds_a_receptive_field_that_is_too_small(kind, monkeypatch):
    threat, found = PatchThreat(1, 1), []

    def too_small(classifier, layer, size, claim=None):
        parts, field = measured(classifier, layer, size)
        rows = field.first_row, np.minimum(field.first_row + 1, field.stop_row)
        columns = field.first_column, np.minimum(field.first_column + 1, field.stop_column)
        return parts, ReceptiveField(size, field.grid, *rows, *columns)

    monkeypatch.setattr("patchdemux.defenses.local_votes.measured", too_small)
    for seed in range(6):
        demux = PatchDemux(TinyLocalNet(2, seed), threat, kind("local", -2, 3))
        _, field = too_small(demux.classifier, "local", SIZE)
        found += violations(demux, field, tiny_images(2, SIZE, seed))
    assert found


# --- the two aggregates, on votes -----------------------------------------------------------------


def some_votes(seed, grid=(3, 4), classes=2, low=-4, high=4):
    return np.random.default_rng(seed).integers(low, high + 1, (2, classes, *grid)) / 2


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]),
    ends=st.sampled_from([(-2.0, 2.0), (0.0, 1.5), (-1.5, 0.0), (-1.0, 2.0)]),
)
def test_bounds_are_what_the_worst_votes_give(kind, seed, size, ends):
    """All votes of a region at either end of their range, or in between: none is worse, one as bad."""
    defense = kind("local", *ends)
    votes = some_votes(seed)
    boxes = windows(votes.shape[2:], size)
    bounds = defense.of_votes(defense.steps(votes), boxes, size)
    for r, (top, left, height, width) in enumerate(boxes):
        contents = list(product([ends[0], 0.25, ends[1]], repeat=height * width))
        attacked = np.repeat(votes, len(contents), axis=0)
        patches = np.reshape(contents * len(votes), (-1, 1, height, width))
        attacked[:, :, top : top + height, left : left + width] = patches
        changed = defense.of_votes(defense.steps(attacked), boxes, size).defended
        changed = changed.reshape(len(votes), len(contents), -1)
        np.testing.assert_array_equal(changed.min(axis=1), bounds.lower[:, r])
        np.testing.assert_array_equal(changed.max(axis=1), bounds.upper[:, r])


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
def test_robust_masking_is_patchguard_at_every_threshold(seed, size):
    votes = some_votes(seed, (2, 4), low=-6, high=8)
    cells = votes.shape[2] * votes.shape[3]
    # So large a range that a window left unmasked with it would never be the worst.
    defense = RobustMasking("local", -1000, 1000)
    bounds = defense.of_votes(defense.steps(votes), windows(votes.shape[2:], size), size)
    for image, label in np.ndindex(2, 2):
        table = votes[image, label].tolist()
        against = (-votes[image, label]).tolist()
        masked = reference.robust_masking(table, *size) - reference.robust_masking(against, *size)
        assert bounds.defended[image, label] == np.float32(masked / cells)
        for threshold in (-3.0, -1.5, -0.5, 0.0, 0.25, 1.0, 4.5):
            for truth in (0, 1):
                ours = certified(bounds, np.full((2, 2), truth), threshold / cells)[image, label]
                theirs = reference.robust_masking_certifies(table, truth, threshold, *size)
                assert ours == theirs


def test_without_evidence_for_no_robust_masking_is_the_masked_sum():
    votes = np.abs(some_votes(0))
    defense = RobustMasking("local", 0, 1000)
    bounds = defense.of_votes(defense.steps(votes), windows(votes.shape[2:], (2, 2)), (2, 2))
    for image, label in np.ndindex(2, 2):
        masked = reference.robust_masking(votes[image, label].tolist(), 2, 2)
        assert bounds.defended[image, label] == np.float32(masked / 12)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_local_votes_are_the_mean_of_clamped_votes(seed):
    votes = np.random.default_rng(seed).normal(0, 3, (2, 3, 4, 5)).astype(np.float32)
    defense = LocalVotes("local", -2.5, 4)
    boxes = windows((4, 5), (2, 3))
    bounds = defense.of_votes(defense.steps(votes), boxes, (2, 3))
    clamped = votes.astype(np.float64).clip(-2.5, 4)
    np.testing.assert_allclose(bounds.defended, clamped.mean(axis=(2, 3)), atol=1e-6)
    for r, (top, left, height, width) in enumerate(boxes):
        for end, bound in ((-2.5, bounds.lower), (4, bounds.upper)):
            moved = clamped.copy()
            moved[:, :, top : top + height, left : left + width] = end
            np.testing.assert_allclose(bound[:, r], moved.mean(axis=(2, 3)), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_patch_certifies_no_more_on_the_same_windows(kind):
    """With the masked window as it is, more cells in the attacker's hands only widen intervals."""
    votes = some_votes(3, (4, 4))
    defense = kind("local", -2, 2)
    steps = defense.steps(votes)
    spans = []
    for side in (1, 2, 3):
        bounds = defense.of_votes(steps, windows((4, 4), (side, side)), (3, 3))
        spans.append((bounds.lower.min(axis=1), bounds.upper.max(axis=1)))
    for (low, high), (lower, higher) in pairwise(spans):
        assert (lower <= low).all()
        assert (higher >= high).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_the_batches_changes_nothing(kind):
    images = tiny_images(5, SIZE, 0)
    model, threat = TinyLocalNet(3, 0), PatchThreat(1, 2)
    one, all_ = (
        PatchDemux(model, threat, kind("local", -2, 2), batch_size=size).bounds(images)
        for size in (1, 5)
    )
    for name in ("clean", "defended", "lower", "upper"):
        np.testing.assert_array_equal(getattr(one, name), getattr(all_, name))


def test_votes_within_their_range_leave_the_undefended_scores():
    images = tiny_images(4, SIZE, 0)
    demux = PatchDemux(TinyLocalNet(3, 0), PatchThreat(1, 1), LocalVotes("local", -99, 99))
    bounds = demux.bounds(images)
    with torch.inference_mode():
        np.testing.assert_array_equal(bounds.clean, demux.classifier(images).numpy())
    np.testing.assert_allclose(bounds.defended, bounds.clean, rtol=1e-6)


# --- networks that are built to be local ----------------------------------------------------------


@pytest.mark.parametrize(("narrow_from", "seen"), [("layer1", 19), ("layer2", 35)])
def test_a_resnet_with_small_windows(narrow_from, seen):
    """What resnet10t sees: 3, 7, 11 pixels in its stem and 15 after pooling, 4 more through the mean of
    2 x 2 in a shortcut, and 16 more through the two convolutions of layer1.
    """
    classifier = local_resnet("resnet10t", narrow_from=narrow_from, class_names="ab", image_size=64)
    classifier.eval()
    parts, field = measured(classifier, "local", 64)
    assert field.grid == (8, 8)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        local = parts.front(images)
        assert local.shape == (2, 2, 8, 8)
        assert torch.allclose(classifier(images), local.mean(dim=(2, 3)))
    assert field.size == (seen, seen)
    demux = PatchDemux(classifier, PatchThreat(9, 9), LocalVotes(receptive_field=seen))
    assert demux.bounds(images).lower.shape == (2, len(field.regions(demux.threat)), 2)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalVotes(low=1, high=1), r"from low to a higher high, but got \[1.0, 1.0\]"),
        (lambda: RobustMasking(high=float("inf")), "high must be a finite number, but got inf"),
        (lambda: local_resnet("resnet10t", narrow_from="layer5"), "narrow_from must be one of"),
        (lambda: local_resnet("vit_tiny_patch16_224"), "vit_tiny_patch16_224 is no ResNet of timm"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Global(nn.Module):
    """Local scores that also depend on the mean of the image, a little."""

    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2))

    def forward(self, images):
        return self.local(images).mean(dim=(2, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "threat", "defense", "message"),
    [
        (Global(), (1, 1), {}, r"a patch of 1 x 1 pixels can change all 5 x 5 cells"),
        (TinyLocalNet(2, 0), (4, 4), {}, r"can change all 4 x 4 cells of the map"),
        (
            TinyLocalNet(2, 0, kernel=3),
            (1, 1),
            {"receptive_field": 2},
            r"said to be 2 pixels, but a cell of it sees 3 x 3 pixels of an image of 5 x 5",
        ),
        (TinyLocalNet(2, 0), (1, 1), {"layer": "nothing"}, "no layer 'nothing'; it has local"),
        (nn.Sequential(nn.Flatten(), nn.Linear(75, 2)), (1, 1), {"layer": "0"}, "must be a map"),
    ],
)
def test_what_cannot_be_proved_is_refused_before_any_pass(kind, model, threat, defense, message):
    passes = []
    handle = model.register_forward_hook(lambda *_: passes.append(1))
    classifier = Classifier(model)
    with pytest.raises(ValueError, match=message):
        kind(**defense).check(classifier, SIZE, PatchThreat(*threat))
    with pytest.raises(ValueError, match=message):
        PatchDemux(classifier, PatchThreat(*threat), kind(**defense)).bounds(
            tiny_images(1, SIZE, 0)
        )
    handle.remove()


def test_a_layer_without_a_channel_per_class_is_refused():
    demux = PatchDemux(TinyLocalNet(2, 0), PatchThreat(1, 1), LocalVotes("local.1"))
    with pytest.raises(ValueError, match=r"'local\.1' must have a channel per class, but it has 5"):
        demux.bounds(tiny_images(1, SIZE, 0))
