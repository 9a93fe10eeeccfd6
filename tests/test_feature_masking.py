"""Masks on features: in pixels every placement is hidden, and the front runs once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, DoubleMasking, PatchDemux, PatchThreat
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.receptive_field import measured
from test_receptive_field import by_gradient, geometries, random_images
from tiny import TinyNet, TinySplitNet, tiny_images


@settings(max_examples=10)
@given(
    layers=geometries,
    size=st.tuples(st.integers(15, 17), st.integers(15, 17)),
    patch=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    masks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_every_placement_is_hidden_by_a_feature_mask(layers, size, patch, masks):
    """In pixels: the cells that a patch moves, by gradient, lie inside the masks of its regions."""
    torch.manual_seed(0)
    front = nn.Sequential(
        *(nn.Conv2d(1, 1, kernel, stride, padding) for kernel, stride, padding, _ in layers)
    )
    classifier = Classifier(nn.Sequential(front, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    defense, threat = FeatureMasking("0", masks), PatchThreat(*patch)
    _, field = measured(classifier, "0", size)
    try:
        reach = defense.feature_threat(field, threat)
    except ValueError:
        return  # the patch reaches all cells
    hidden = defense.of_features.mask_set(field.grid, reach).dense()
    boxes = defense.covering(classifier, size, threat).boxes
    seen = by_gradient(front, size)
    for top, left in np.ndindex(size[0] - patch[0] + 1, size[1] - patch[1] + 1):
        moved = seen[top : top + patch[0], left : left + patch[1]].any(axis=(0, 1))
        holders = [
            r
            for r, (row, column, height, width) in enumerate(boxes)
            if row <= top and top + patch[0] <= row + height
            and column <= left and left + patch[1] <= column + width
        ]  # fmt: skip
        assert holders
        assert all(not (moved & ~hidden[r]).any() for r in holders)


def test_it_is_double_masking_where_the_front_is_one_pixel_wide():
    """A front of 1 x 1 that changes nothing: cells are pixels."""
    size, threat = (4, 4), PatchThreat(1, 2)
    back, same = TinyNet(size, 3, 0), nn.Conv2d(1, 1, 1)
    same.weight.data[:], same.bias.data[:] = 1, 0
    images = tiny_images(3, size, 0)
    pixels = PatchDemux(back, threat, DoubleMasking((2, 2))).bounds(images)
    model = nn.Sequential(same, back)
    cells = PatchDemux(model, threat, FeatureMasking("0", (2, 2))).bounds(images)
    for name in ("clean", "defended", "lower", "upper"):
        np.testing.assert_array_equal(getattr(pixels, name), getattr(cells, name))


def test_the_front_runs_once_per_image():
    model = TinySplitNet((6, 6), 2, 0)
    passes = {"front": 0, "back": 0}

    def counter(name):
        def count(module, given):
            passes[name] += len(given[0])

        return count

    demux = PatchDemux(model, PatchThreat(1, 1), FeatureMasking(masks=(2, 2)))
    demux.check((6, 6))
    model.front[0].register_forward_pre_hook(counter("front"))
    model.back.first.register_forward_pre_hook(counter("back"))
    demux.bounds(tiny_images(3, (6, 6), 0))
    assert passes == {"front": 3, "back": 3 * (1 + 10)}
    assert sum(passes.values()) == 3 * demux.defense.views((6, 6), demux.threat)


def test_labels_are_those_of_the_bounds():
    images = tiny_images(6, (6, 6), 0)
    for center, guard in (("median", "both"), ("undefended", "recall")):
        defense = FeatureMasking(masks=(3, 3), center=center, guard=guard)
        demux = PatchDemux(TinySplitNet((6, 6), 3, 1), PatchThreat(1, 2), defense)
        decision = demux.decide(images, 0.6)
        assert decision.decided.all()
        expected = demux.bounds(images).defended > np.log(0.6 / 0.4)
        np.testing.assert_array_equal(decision.labels, expected)


def test_features_that_are_not_finite_are_refused():
    class Reciprocal(nn.Module):
        def forward(self, images):
            return 1 / images

    model = nn.Sequential(Reciprocal(), nn.Flatten(), nn.Linear(3 * 16, 2))
    demux = PatchDemux(model, PatchThreat(1, 1), FeatureMasking("0", (2, 2)))
    images = random_images(2, (4, 4))
    images[1, 0, 0, 0] = 0
    with pytest.raises(ValueError, match="'0' does not give finite features of image 1"):
        demux.bounds(images)


def test_a_smaller_claim_is_refused():
    classifier = Classifier(TinySplitNet((5, 5), 2, 0))
    FeatureMasking(receptive_field=2).check(classifier, (5, 5), PatchThreat(1, 1))
    with pytest.raises(ValueError, match="is said to be 1 pixels, but a cell of it sees 2 x 2"):
        FeatureMasking(receptive_field=1).check(classifier, (5, 5), PatchThreat(1, 1))
