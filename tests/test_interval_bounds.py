"""Interval bounds: against rational arithmetic, number by number, and every content of a patch."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.defenses.interval_bounds import DOUBLE, IntervalBounds
from patchdemux.defenses.intervals import SUPPORTED, Interval, layers_of, propagate
from patchdemux.runtimes import make_runtime
from reference import exact, interval_layer
from tiny import every_attack, tiny_images

SIZE = (5, 6)
THREAT = PatchThreat(2, 2)


def small_network(seed, spread=1.0):
    """Every kind of layer, with weights of many sizes."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 2, stride=1, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.Identity(),
        nn.ReLU(),
        nn.Linear(5, 2),
    )
    for numbers in (*network.parameters(), network[1][0].running_mean):
        nn.init.normal_(numbers, std=spread)
    nn.init.uniform_(network[1][0].running_var, 0.5, 2)
    return network.eval()


def exact_ends(layers, image, box, mean=0.0, std=1.0):
    """The interval of every output in rational arithmetic, when the pixels in the box are free."""
    top, left, height, width = box
    planes = [
        [
            [
                (Fraction(0), Fraction(1))
                if top <= y < top + height and left <= x < left + width
                else (pixel, pixel)
                for x, pixel in enumerate(row)
            ]
            for y, row in enumerate(plane)
        ]
        for plane in exact(image)
    ]
    scale, shift = 1 / Fraction(std), -Fraction(mean) / Fraction(std)
    planes = interval_layer("scale", ([scale] * len(planes), [shift] * len(planes)), planes)
    for layer in layers:
        match layer:
            case nn.Conv2d():
                options = exact(layer.weight), exact(layer.bias), layer.stride[0], layer.padding[0]
                planes = interval_layer("convolution", options, planes)
            case nn.Linear():
                planes = interval_layer("linear", (exact(layer.weight), exact(layer.bias)), planes)
            case nn.BatchNorm2d():
                # A square root is no fraction; that of double precision is close enough.
                scale = (layer.running_var.double() + layer.eps).rsqrt() * layer.weight.double()
                scale = exact(scale)
                shift = [
                    b - m * s
                    for b, m, s in zip(
                        exact(layer.bias), exact(layer.running_mean), scale, strict=True
                    )
                ]
                planes = interval_layer("scale", (scale, shift), planes)
            case nn.ReLU():
                planes = interval_layer("relu", None, planes)
            case nn.AvgPool2d():
                planes = interval_layer("average", layer.kernel_size, planes)
            case nn.MaxPool2d():
                planes = interval_layer("max", layer.kernel_size, planes)
    return planes


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.3, 3.0]))
def test_bounds_are_those_of_rational_arithmetic(seed, spread):
    network, defense = small_network(seed, spread), IntervalBounds(stride=2)
    image = torch.rand(1, 1, *SIZE)
    classifier = Classifier(network, mean=[0.25], std=[0.5])
    bounds = PatchDemux(classifier, THREAT, defense).bounds(image)
    boxes = defense.region_boxes(SIZE, THREAT).tolist()
    for region, box in list(enumerate(boxes))[::3]:
        ends = exact_ends(layers_of(network), image[0], box, 0.25, 0.5)
        expected = np.array([pair for plane in ends for row in plane for pair in row], float)
        found = np.stack([bounds.lower[0, region], bounds.upper[0, region]], axis=1)
        np.testing.assert_array_max_ulp(found, expected.astype(np.float32))


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_no_interval_is_too_narrow_and_none_much_too_wide(seed):
    """In double precision, without the rounding at the end."""
    network = small_network(seed).double()
    image = torch.rand(1, *SIZE)
    box = (1, 2, 2, 3)
    free = torch.zeros(SIZE, dtype=torch.float64)
    free[1:3, 2:5] = 1
    low = image[None].double() * (1 - free)
    found = propagate(layers_of(network), Interval(low, low + free), DOUBLE)
    for (end,), side, sign in zip(zip(found, strict=True), (0, 1), (1, -1), strict=True):
        ends = exact_ends(layers_of(network), image, box)
        for number, plane in zip(end[0].tolist(), ends, strict=True):
            distance = sign * (plane[0][0][side] - Fraction(number))
            assert 0 < distance < Fraction(1, 10**8)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), stride=st.integers(1, 3))
def test_no_content_leaves_the_bounds(seed, stride):
    network, defense = small_network(seed), IntervalBounds(stride)
    demux = PatchDemux(network, THREAT, defense)
    image = tiny_images(1, SIZE, seed)
    bounds, boxes = demux.bounds(image), defense.region_boxes(SIZE, THREAT)
    places, contents = zip(*every_attack(image[0], THREAT), strict=True)
    attacked = torch.cat(contents)
    gray = torch.where(attacked != image, torch.rand_like(attacked), attacked)
    scores = defended(demux, torch.cat([attacked, gray])).reshape(2, len(places), -1, 2)
    for place, reached in zip(
        places, scores.swapaxes(0, 1).reshape(len(places), -1, 2), strict=True
    ):
        holders = (boxes[:, :2] <= place) & (boxes[:, :2] + boxes[:, 2:] >= np.add(place, 2))
        holders = np.flatnonzero(holders.all(axis=1))
        assert len(holders)
        assert (bounds.lower[0, holders] <= reached[:, None]).all()
        assert (reached[:, None] <= bounds.upper[0, holders]).all()


def defended(demux, images):
    """The defended scores without any bounds."""
    return demux.decide(images).lower


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), power=st.integers(-20, 20))
def test_rounding_does_not_leave_the_bounds_where_they_are_attained(seed, power):
    """Without negative weights, the all-white and all-black contents are the two extremes."""
    network = small_network(seed)
    with torch.no_grad():
        for weights in network.parameters():
            weights.abs_().mul_(2.0**power)
    demux = PatchDemux(network, THREAT, IntervalBounds())
    image = torch.rand(1, 1, *SIZE)
    bounds = demux.bounds(image)
    regions = torch.from_numpy(demux.defense.mask_set(SIZE, THREAT).dense())[:, None]
    for content, bound, sign in ((0.0, bounds.lower, 1), (1.0, bounds.upper, -1)):
        reached = defended(demux, torch.where(regions, content, image))
        assert (sign * (reached - bound[0]) >= 0).all()
        np.testing.assert_array_max_ulp(reached, bound[0], 1)


def test_the_defended_score_is_the_plain_one_and_labels_need_no_bounds():
    network, images = small_network(0), torch.rand(3, 1, *SIZE)
    demux = PatchDemux(network, THREAT, IntervalBounds())
    bounds = demux.bounds(images)
    np.testing.assert_allclose(bounds.defended, network(images).detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bounds.defended, bounds.clean, rtol=1e-5, atol=1e-5)
    decision = demux.decide(images, 0.5, max_views=1)
    np.testing.assert_array_equal(decision.labels, bounds.defended > 0)
    np.testing.assert_array_equal(decision.lower, bounds.defended)
    with pytest.raises(ValueError, match="max_views must be at least 1"):
        demux.decide(images, 0.5, max_views=0)


def test_fewer_regions_are_looser():
    network, images = small_network(1), torch.rand(2, 1, *SIZE)
    fine, coarse = (
        PatchDemux(network, THREAT, IntervalBounds(stride)).bounds(images) for stride in (1, 2)
    )
    assert fine.lower.shape[1] == 4 * 5
    assert coarse.lower.shape[1] == 2 * 3
    assert (coarse.lower.min(axis=1) <= fine.lower.min(axis=1)).all()
    assert (coarse.upper.max(axis=1) >= fine.upper.max(axis=1)).all()


@pytest.mark.parametrize("batch_size", [1, 7])
def test_batches_do_not_matter(batch_size):
    network, images = small_network(2), torch.rand(3, 1, *SIZE)
    whole = PatchDemux(network, THREAT, IntervalBounds(), batch_size=1000).bounds(images)
    parts = PatchDemux(network, THREAT, IntervalBounds(), batch_size=batch_size).bounds(images)
    for name in ("defended", "lower", "upper"):
        np.testing.assert_array_max_ulp(getattr(whole, name), getattr(parts, name), 1)


def test_every_layer_that_is_named_works():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2, dilation=2, padding=2, bias=False),
        nn.Dropout2d(),
        nn.BatchNorm2d(4, affine=False),
        nn.AdaptiveMaxPool2d((3, 2)),
        nn.AdaptiveAvgPool2d((None, 1)),
        nn.Flatten(2),
        nn.Conv1d(4, 4, 2),
        nn.Dropout1d(),
        nn.BatchNorm1d(4),
        nn.AvgPool1d(1),
        nn.MaxPool1d(1),
        nn.AdaptiveAvgPool1d(2),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2, bias=False),
    )
    others = (nn.ReLU, nn.Identity, nn.Dropout, nn.MaxPool2d, nn.AvgPool2d)  # in `small_network`
    assert {type(layer) for layer in network} | set(others) == set(SUPPORTED)
    demux = PatchDemux(network, THREAT, IntervalBounds(2))
    images = torch.rand(2, 2, *SIZE)
    bounds = demux.bounds(images)
    assert (bounds.lower < bounds.upper).any()
    attacked = torch.cat([batch for _, batch in every_attack(images[0, :1], THREAT)])
    both = torch.cat([attacked, images[:1, 1:].expand(len(attacked), -1, -1, -1)], dim=1)
    scores = defended(demux, both)
    assert (scores >= bounds.lower[0].min(axis=0)).all()
    assert (scores <= bounds.upper[0].max(axis=0)).all()


class Derived(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) ** 2


class Own(Classifier):
    def forward(self, images):
        return -super().forward(images)


def hooked():
    layer = nn.Linear(30, 2)
    layer.register_forward_hook(lambda module, inputs, outputs: -outputs)
    return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Sigmoid())),
            "intervals cannot go through layer 1.1, which is a Sigmoid: the network must be an "
            "nn.Sequential of Conv1d, Conv2d, Linear",
        ),
        (lambda images: images.mean(dim=(2, 3)), "the model, which is a function"),
        (nn.Sequential(nn.Flatten(), Derived(30, 2)), "layer 1, which is a Derived"),
        (hooked(), "layer 1, which has hooks"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding_mode="reflect")), "pads with 'reflect'"),
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=1)), "divides by a number of its own"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False)), "normalises by the batch"),
        (Own(small_network(0)), "no class derived from it"),
        (Classifier(small_network(0), visible_channel=True), "and no visible channel"),
    ],
)
def test_what_intervals_cannot_go_through_is_named_before_any_pass(model, message):
    demux = PatchDemux(model, THREAT, IntervalBounds())
    demux.engine.batched = None  # nothing may be run
    with pytest.raises(ValueError, match=message):
        demux.bounds(torch.rand(1, 1, *SIZE))


def test_settings_and_runtimes():
    with pytest.raises(ValueError, match="stride must be at least 1, but got 0"):
        IntervalBounds(0)
    with pytest.raises(ValueError, match="patch of 6 x 1 pixels does not fit"):
        PatchDemux(small_network(0), PatchThreat(6, 1), IntervalBounds()).bounds(
            torch.rand(1, 1, *SIZE)
        )
    assert IntervalBounds(2).in_words(SIZE, THREAT) == (
        "intervals for 6 regions, which hold every patch of 2 x 2 pixels"
    )
    images = torch.rand(1, 1, *SIZE)
    half = make_runtime(Classifier(small_network(0)), "torch", "bfloat16")
    for mine, theirs in zip(
        PatchDemux(half, THREAT, IntervalBounds()).bounds(images).lower,
        PatchDemux(small_network(0), THREAT, IntervalBounds()).bounds(images).lower,
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
