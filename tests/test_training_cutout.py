"""Cutouts: the greedy search against its literal form, random squares, and the asymmetric loss."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, Engine, MaskSet, PatchThreat
from patchdemux.training.batches import CUTOUT, Place, generator
from patchdemux.training.cutout import greedy_masks, random_squares, searched_views
from patchdemux.training.hiding import Hider
from patchdemux.training.losses import asymmetric_losses
from reference import asymmetric_loss, greedy_cutout
from tiny import TinyNet, tiny_images
from tiny_training import SIZE, classifier, colors, quick


def exact(logits, targets):
    """A loss of sums only, so that it is the same in any batch, and ties are ties."""
    return ((1 - 2 * targets) * logits).sum(dim=1)


def levels_of(size, threat, counts):
    return [MaskSet.covering(size, threat, count) for count in counts]


def behind(image, boxes):
    image = image.clone()
    for top, left, height, width in boxes:
        image[:, top : top + height, left : left + width] = 0
    return image


# --- greedy ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    patch=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    counts=st.sampled_from([(1,), (2,), (3,), (4,), (2, 3), (2, 4), (1, 3), (1, 2, 4)]),
)
def test_greedy_masks_are_those_of_the_literal_search(seed, size, patch, counts):
    model = TinyNet(size, classes=3, seed=seed)
    images = tiny_images(3, size, seed)
    targets = torch.randint(0, 2, (3, 3), generator=torch.Generator().manual_seed(seed))
    levels = levels_of(size, PatchThreat(*patch), counts)
    boxes = [tuple(box) for level in levels for box in level.boxes.tolist()]
    found = greedy_masks(Engine(Classifier(model), batch_size=7), images, targets, levels, exact)
    assert model.views <= len(images) * searched_views(levels)
    for image, target, masks in zip(images, targets, found, strict=True):

        def loss_behind(hidden, image=image, target=target):
            with torch.no_grad():
                return float(exact(model(behind(image, hidden)[None]), target[None])[0])

        literal = greedy_cutout(loss_behind, [[*map(tuple, m.boxes.tolist())] for m in levels])
        assert [boxes[mask] for mask in masks] == literal


@pytest.mark.parametrize(("counts", "passes"), [((6,), 72), ((3,), 18), ((3, 6), 26)])
def test_passes_of_the_search(counts, passes):
    levels = levels_of((62, 62), PatchThreat.from_area(0.02, 62), counts)
    assert searched_views(levels) == passes


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_coarse_to_fine_finds_what_all_masks_would_where_it_must(seed):
    size, threat = (8, 8), PatchThreat(2, 2)
    images = tiny_images(4, size, seed)
    targets = torch.ones(4, 1)
    # Every fine mask lies in the one mask that hides all: all are tried.
    model, levels = TinyNet(size, 1, seed), levels_of(size, threat, (1, 4))
    found = greedy_masks(Engine(Classifier(model)), images, targets, levels, exact)
    hidden = np.concatenate([level.dense() for level in levels])
    scores = Engine(Classifier(model)).masked_scores(images, hidden, np.arange(17)[:, None])
    np.testing.assert_array_equal(found[:, 0], (-scores[:, :, 0]).argmax(axis=1))

    # A single pixel decides: every level has a mask over it, so none is better than the coarsest.
    row, column = seed % 8, seed // 8 % 8

    class Pixel(nn.Module):
        def forward(self, images):
            return images[:, :, row, column]

    levels = levels_of(size, threat, (2, 4))
    hidden = np.concatenate([level.dense() for level in levels])
    found = greedy_masks(
        Engine(Classifier(Pixel())), torch.ones_like(images), targets, levels, exact
    )
    assert hidden[found[:, 0], row, column].all()


def test_the_search_sees_the_model_in_evaluation_mode():
    model = classifier(dropout=0.5)
    model.model(torch.rand(64, 3, SIZE, SIZE))  # statistics that are not those of a batch
    modes = []
    model.model[1].register_forward_hook(lambda module, *_: modes.append(module.training))
    data, recipe = colors(6), quick(augment="none", masks=(3,))
    hider = Hider(model, recipe, (SIZE, SIZE), asymmetric_losses(recipe))
    targets = torch.tensor(data.targets).float()
    model.train()
    model.model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hidden = hider.hide(Place(0, np.arange(6)), data.images, targets)
    assert modes
    assert not any(modes)
    assert model.model[1].training
    assert not model.model[3].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    # The same as trying all masks, and beside the worst all again, image by image.
    dense = torch.from_numpy(hider.hidden)
    model.eval()
    with torch.no_grad():
        for image, target, shown in zip(data.images, targets, hidden, strict=True):

            def loss(masked, target=target):
                return float(hider.losses(model(masked[None]), target[None])[0])

            alone = [loss(image * ~mask) for mask in dense]
            first = dense[int(np.argmax(alone))]
            highest = max(loss(image * ~(first | mask)) for mask in dense)
            assert loss(shown) == pytest.approx(highest, rel=1e-4)


@pytest.mark.parametrize("cutout", ["random", "greedy"])
def test_only_a_share_of_the_images_is_hidden(cutout):
    data = colors(30)
    recipe = quick(cutout=cutout, share=0.5, fill=0.25)
    hider = Hider(classifier(), recipe, (SIZE, SIZE), asymmetric_losses(recipe))
    targets = torch.tensor(data.targets).float()
    shown = hider.hide(Place(1, np.arange(30)), data.images, targets)
    changed = (shown != data.images).flatten(1).any(dim=1)
    lucky = [generator(recipe, CUTOUT, 1, image).random() < 0.5 for image in range(30)]
    assert changed.tolist() == lucky
    assert 5 < sum(lucky) < 25
    assert (shown[shown != data.images] == 0.25).all()


def test_nothing_is_hidden_in_plain_training():
    data, recipe = colors(4), quick(cutout="none")
    hider = Hider(classifier(), recipe, (SIZE, SIZE), asymmetric_losses(recipe))
    targets = torch.tensor(data.targets).float()
    assert hider.hide(Place(0, np.arange(4)), data.images, targets) is data.images


# --- random ---------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    largest=st.sampled_from([0.01, 0.1, 0.25, 0.5, 1.0]),
)
def test_a_random_square(seed, size, largest):
    hidden = random_squares(size, largest, np.random.default_rng(seed), count=1)
    assert hidden.shape == size
    rows, columns = hidden.any(axis=1).sum(), hidden.any(axis=0).sum()
    assert rows == columns
    assert hidden.sum() == rows * columns
    assert hidden.sum() <= largest * size[0] * size[1]


def test_two_squares_of_every_size_at_every_place():
    random = np.random.default_rng(0)
    one = [random_squares((20, 30), 0.25, random, count=1) for _ in range(3000)]
    shares = np.array([hidden.mean() for hidden in one])
    assert shares.mean() == pytest.approx(0.125, abs=0.01)
    large = [hidden for hidden in one if hidden.any(axis=1).sum() == 12]
    assert {int(hidden.any(axis=1).argmax()) for hidden in large} == set(range(9))
    assert {int(hidden.any(axis=0).argmax()) for hidden in large} == set(range(19))
    two = [random_squares((20, 30), 0.25, random).mean() for _ in range(1000)]
    assert 0.4 < max(two) <= 0.5
    same = [random_squares((20, 30), 0.25, np.random.default_rng(7)) for _ in range(2)]
    assert np.array_equal(*same)


# --- losses ---------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    focus=st.sampled_from([(0.0, 4.0, 0.05), (0.0, 0.0, 0.0), (1.0, 2.0, 0.1)]),
)
def test_the_asymmetric_loss(seed, focus):
    random = np.random.default_rng(seed)
    logits, targets = random.normal(0, 3, (4, 5)), random.integers(0, 2, (4, 5))
    names = ("focus_positive", "focus_negative", "clip")
    losses = asymmetric_losses(quick(**dict(zip(names, focus, strict=True))))
    found = losses(torch.from_numpy(logits).float(), torch.from_numpy(targets))
    literal = [
        sum(asymmetric_loss(x, y, *focus) for x, y in zip(*image, strict=True))
        for image in zip(logits, targets, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), literal, rtol=1e-4, atol=1e-6)
