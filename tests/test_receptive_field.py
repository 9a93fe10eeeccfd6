"""Cutting a model and measuring what its cells see, each against a second way."""

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, PatchThreat
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.receptive_field import measured
from patchdemux.runtimes import make_runtime
from patchdemux.split import split


def random_images(count, size, channels=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.rand((count, channels, *size), generator=random)


# --- the cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("resnet10t", "layer1"),
        ("resnet10t", "layer2.0"),
        ("efficientnet_lite0", "blocks.1"),
        ("efficientnet_lite0", "blocks.1.0"),
    ],
)
def test_the_two_parts_are_the_whole(name, layer):
    classifier = Classifier(timm.create_model(name, num_classes=3), mean=[0.4] * 3, std=[0.2] * 3)
    modes = [module.training for module in classifier.modules()]
    parts = split(classifier, layer)
    assert [module.training for module in classifier.modules()] == modes
    classifier.eval()
    images = random_images(2, (64, 64))
    with torch.inference_mode():
        features = parts.front(images)
        assert features.ndim == 4
        assert torch.equal(parts.back(features), classifier(images))


class Around(nn.Module):
    """A shortcut from the image to the end; and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 1, 1), nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    def forward(self, images):
        return self.last(self.first(self.first(images))) + images.mean(dim=(1, 2, 3))[:, None]


class Branching(nn.Module):
    """Looks at what is in the image before it decides what to do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 1, 1), nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    def forward(self, images):
        if images.sum() > 0:
            images = -images
        return self.last(self.first(images))


class Own(Classifier):
    """Has a forward of its own."""

    def forward(self, images):
        return super().forward(images) + 1


@pytest.mark.parametrize(
    ("classifier", "layer", "message"),
    [
        (Classifier(Around()), "last.0", "also takes what comes before it, around the cut"),
        (Classifier(Around()), "first", "'first', which is used 2 times in one pass"),
        (Classifier(Branching()), "first", "torch.fx cannot trace what holds it"),
        (Classifier(Around()), "second", "has no layer 'second'; it has first, last"),
        (Classifier(lambda images: images), "0", "only a torch module can be cut"),
        (Own(Around()), "first", "a Own has a forward of its own"),
        (make_runtime(Classifier(Around()), "compile"), "first", "run by compile in float32"),
    ],
)
def test_what_cannot_be_cut_is_refused(classifier, layer, message):
    with pytest.raises(ValueError, match=message):
        split(classifier, layer)


def test_a_model_that_never_does_the_same_is_refused():
    class Random(nn.Module):
        def forward(self, images):
            return images * torch.rand(1)

    model = nn.Sequential(nn.Conv2d(1, 1, 1), Random(), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(ValueError, match="the two parts of the model, cut after '0', do not give"):
        measured(Classifier(model), "0", (4, 4))


# --- what a cell sees -----------------------------------------------------------------------------


def by_gradient(front, size, channels=1):
    """Which pixels move which cells: (row, column, cell row, cell column), one gradient each."""
    image = random_images(1, size, channels).requires_grad_()
    cells = front(image).abs().sum(dim=(0, 1))
    seen = torch.zeros(*size, *cells.shape, dtype=torch.bool)
    for place in np.ndindex(*cells.shape):
        (gradient,) = torch.autograd.grad(cells[place], image, retain_graph=True)
        seen[:, :, *place] = (gradient != 0).any(dim=1)[0]
    return seen.numpy()


geometries = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=2,
)


@settings(max_examples=10)
@given(
    layers=geometries,
    size=st.tuples(st.integers(15, 17), st.integers(15, 17)),
    patch=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_no_patch_changes_a_cell_that_it_is_not_said_to(layers, size, patch):
    """Every placement of a patch, against the gradient of every cell by every pixel."""
    torch.manual_seed(0)
    made = []
    for kernel, stride, padding, pool in layers:
        made += [nn.Conv2d(1, 1, kernel, stride, padding), nn.Softplus()]
        made += [nn.AvgPool2d(2, 1)] if pool else []
    front = nn.Sequential(*made)
    classifier = Classifier(nn.Sequential(front, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    _, field = measured(classifier, "0", size)
    seen = by_gradient(front, size)
    assert field.grid == seen.shape[2:]
    threat = PatchThreat(*patch)
    tops, lefts = field.touched(threat)
    tight = True
    for top, left in np.ndindex(len(tops), len(lefts)):
        moved = seen[top : top + patch[0], left : left + patch[1]].any(axis=(0, 1))
        said = np.zeros(field.grid, bool)
        said[slice(*tops[top]), slice(*lefts[left])] = True
        assert not (moved & ~said).any()
        tight = tight and (moved == said).all()
    if all(kernel >= stride for kernel, stride, *_ in layers):  # no pixels are skipped
        assert tight
    height, width = (
        max(seen.any(axis=other).any(axis=2 - axis).sum(axis=0)) for axis, other in ((0, 1), (1, 0))
    )
    assert field.size[0] >= height
    assert field.size[1] >= width


class Swallow(nn.Module):
    """Sees the whole image, and hides it from NaN: a comparison with NaN is just false."""

    def forward(self, images):
        mean = images.nan_to_num(0.5).mean(dim=(2, 3), keepdim=True)
        return torch.where(images > 0.5, 1.0, 0.5) * mean


@pytest.mark.parametrize(
    ("model", "whole"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(1, 4)), True),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.InstanceNorm2d(4)), True),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)), False),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Upsample(8)), True),
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")), True),
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")), False),
        (nn.Sequential(nn.Conv2d(1, 4, 1), Swallow()), True),
        (
            timm.create_model("seresnet18", num_classes=2).layer1.insert(0, nn.Conv2d(1, 64, 1)),
            True,
        ),
    ],
)
def test_what_sees_the_whole_image_is_found(model, whole):
    classifier = Classifier(nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    threat = PatchThreat(1, 1)
    if whole:
        with pytest.raises(ValueError, match=r"a patch of 1 x 1 pixels can change all 8 x 8 cells"):
            FeatureMasking("0").check(classifier, (8, 8), threat)
    else:
        FeatureMasking("0").check(classifier, (8, 8), threat)


def test_a_model_that_was_rebuilt_is_measured_again():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(36, 1))
    classifier = Classifier(model)
    assert measured(classifier, "0", (6, 6))[1].size == (1, 1)
    model[0] = nn.Conv2d(1, 1, 3, padding=1)
    assert measured(classifier, "0", (6, 6))[1].size == (3, 3)
