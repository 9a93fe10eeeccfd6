"""Shared features: the scores of views that share them are those of whole views."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, DoubleMasking, Engine, PatchDemux, PatchThreat
from patchdemux.data import TensorSet
from patchdemux.runs import evaluate
from patchdemux.runtimes import make_runtime, shared

THREAT = PatchThreat(4, 3)


class Local(nn.Module):
    """Convolutions and pooling with padding, strides and a short cut; then the whole image."""

    def __init__(self, seed=0, kernel=3):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Sequential(nn.Conv2d(3, 6, kernel, stride=2, padding=kernel // 2), nn.ReLU())
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.block = nn.Conv2d(6, 6, 3, padding=1)
        self.late = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.last = nn.Linear(8, 4)

    def forward(self, images):
        features = self.pool(self.stem(images))
        features = features + torch.relu(self.block(features))
        return self.last(torch.relu(self.late(features)).amax(dim=(2, 3)))


def classifier(seed=0, kernel=3, **options):
    model = Local(seed, kernel).eval()
    return Classifier(model, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4], **options)


def images(count=2, size=(32, 24), seed=0):
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(seed))


def both(plain, layer="pool", **options):
    return [
        PatchDemux(plain, THREAT, runtime=runtime, **options)
        for runtime in ("torch", f"shared:{layer}")
    ]


def assert_same_bounds(one, other):
    for name in ("clean", "defended", "lower", "upper"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


@settings(max_examples=25)
@given(
    st.integers(0, 99),
    st.sampled_from([(32, 24), (16, 40), (48, 32)]),
    st.sampled_from([1, 3, 5]),
    st.sampled_from(["stem", "pool"]),
    st.sampled_from([(2, 2), (3, 4), (5, 5)]),
    st.sampled_from([0.0, (0.1, 0.7, 0.3)]),
    st.integers(1, 9),
)
def test_bounds_are_those_of_whole_views(seed, size, kernel, layer, masks, fill, batch):
    plain = classifier(seed, kernel)
    defense = DoubleMasking(masks)
    ordinary, sharing = both(plain, layer, defense=defense, fill=fill, batch_size=batch)
    shown = images(2, size, seed)
    assert_same_bounds(ordinary.bounds(shown), sharing.bounds(shown))
    one, other = (demux.decide(shown, 0.5) for demux in (ordinary, sharing))
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.views, other.views)


def test_what_a_mask_hides_does_not_change_a_bit_of_its_views():
    demux = both(classifier())[1]
    masks = demux.defense.mask_set((32, 24), THREAT)
    clean, views = images(1), masks.unions()
    engine = Engine(demux.classifier, batch_size=16)
    truth = engine.masked_scores(clean, masks.dense(), views)[0]
    for mask, (top, left, height, width) in enumerate(masks.boxes):
        attacked = clean.clone()
        attacked[:, :, top : top + height, left : left + width] = torch.rand(3, height, width)
        hiding = (views == mask).any(axis=1)
        found = engine.masked_scores(attacked, masks.dense(), views)[0]
        np.testing.assert_array_equal(found[hiding], truth[hiding])
        assert not np.array_equal(found[~hiding], truth[~hiding])


def test_several_patches_are_run_as_whole_views():
    threat = PatchThreat(4, 3, count=2)
    ordinary, sharing = (
        PatchDemux(classifier(), threat, DoubleMasking(2), runtime=runtime)
        for runtime in ("torch", "shared:pool")
    )
    assert_same_bounds(ordinary.bounds(images()), sharing.bounds(images()))


def test_forgotten_features_are_computed_again(monkeypatch):
    ordinary, sharing = both(classifier(), batch_size=4)
    monkeypatch.setattr(shared, "KEPT", 0)
    assert_same_bounds(ordinary.bounds(images()), sharing.bounds(images()))


def test_the_front_sees_few_pixels():
    plain = classifier()
    _, sharing = both(plain, batch_size=32)
    sharing.bounds(images(1))  # measures the receptive field, and tries the zones
    seen = []
    plain.model.stem[0].register_forward_hook(
        lambda _, given, __: seen.append(given[0][:, 0].numel())
    )
    sharing.bounds(images(1))
    assert sum(seen) < 0.5 * 667 * 32 * 24


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precisions(precision):
    sharing = both(classifier())[1]
    if precision not in sharing.classifier._runtime.precisions(torch.device("cpu")):
        pytest.skip("the processor does not have it")
    tested = make_runtime(classifier(), "shared:pool", precision)
    truth = PatchDemux(classifier(), THREAT).bounds(images())
    found = PatchDemux(tested, THREAT).bounds(images())
    assert np.abs(found.lower - truth.lower).max() < (1e-5 if precision == "float32" else 0.05)


def test_a_run_records_the_layer_and_is_rebuilt_with_it(tmp_path):
    plain = classifier(class_names="abcd", image_size=(32, 24))
    dataset = TensorSet(images(), torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]), "abcd", "noise")
    run = evaluate(both(plain)[1], dataset, tmp_path / "run", batch_size=8)
    assert run.fingerprint["runtime"] == "shared:pool"
    again = PatchDemux.from_run(run, plain)
    assert again.classifier.runtime == "shared:pool"
    assert_same_bounds(again.bounds(images()), run.bounds(margin=0))


def test_errors():
    plain = classifier()
    with pytest.raises(
        ValueError, match="no layer 'nowhere'; it has stem, pool, block, late, last"
    ):
        make_runtime(plain, "shared:nowhere")
    with pytest.raises(ValueError, match="or shared:LAYER, but got 'sharing'"):
        make_runtime(plain, "sharing")
    told = classifier(visible_channel=True)
    with pytest.raises(ValueError, match="this model is also told which pixels are visible"):
        make_runtime(told, "shared:pool")
    with pytest.raises(ValueError, match='with fill="mean" a mask changes what other masks show'):
        PatchDemux(plain, THREAT, fill="mean", runtime="shared:pool")
    with pytest.raises(ValueError, match="6 cells of 23 pixels"):
        PatchDemux(plain, THREAT, runtime="shared:pool").bounds(images(1, (32, 23)))
    with pytest.raises(ValueError, match="depends on the whole image at this layer"):
        PatchDemux(plain, THREAT, DoubleMasking(1), runtime="shared:pool").bounds(images(1))


class Position(nn.Module):
    """Not the same everywhere: what it adds depends on the place, as seen from the border."""

    def forward(self, images):
        return images + torch.arange(images.shape[-1]) / images.shape[-1]


def test_features_that_depend_on_their_place_are_refused():
    model = nn.Sequential(
        Position(), nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )
    demux = PatchDemux(model.eval(), THREAT, runtime="shared:1")
    with pytest.raises(ValueError, match="not those of the whole image in the same place"):
        demux.bounds(images())
