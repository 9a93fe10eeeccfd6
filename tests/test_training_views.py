"""Several views of every image, of which each label learns from the worst; searches in any runtime."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patchdemux.training import Recipe, finetune
from patchdemux.training.batches import Place, places, split
from patchdemux.training.hiding import Hider
from patchdemux.training.losses import asymmetric_losses
from patchdemux.training.state import worst_logits
from reference import asymmetric_loss
from test_training import logged
from tiny_training import SIZE, classifier, colors, quick


@given(
    views=st.integers(1, 4),
    images=st.integers(1, 3),
    classes=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_the_worst_view_of_every_label(views, images, classes, seed):
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(views, images, classes, generator=random)
    targets = torch.randint(0, 2, (images, classes), generator=random).float()
    found = worst_logits(logits.flatten(0, 1), targets)
    for image in range(images):
        for label in range(classes):
            seen = [logits[view, image, label].item() for view in range(views)]
            worst = min(seen) if targets[image, label] else max(seen)
            assert found[image, label].item() == worst


def test_every_image_is_seen_whole_and_behind_pairs_of_masks():
    data, recipe = colors(5), quick(cutout="views", views=3, masks=(2, 3), fill=0.5)
    hider = Hider(classifier(), recipe, (SIZE, SIZE), asymmetric_losses(recipe))
    unions = [first | second for first in hider.hidden for second in hider.hidden]
    place = Place(1, np.arange(5))
    shown = hider.hide(place, data.images, None).unflatten(0, (3, 5))
    assert torch.equal(shown[0], data.images)
    for view in shown[1:]:
        for image, seen in zip(data.images, view, strict=True):
            behind = (image.masked_fill(torch.from_numpy(mask), 0.5) for mask in unions)
            assert any(torch.equal(seen, candidate) for candidate in behind)
    assert not torch.equal(shown[1], shown[2])
    # An image's masks depend on nothing but its place.
    alone = hider.hide(Place(1, np.array([3])), data.images[3:4], None)
    assert torch.equal(alone, shown[:, 3])


def test_a_step_learns_from_the_worst_views(tmp_path):
    recipe = quick(cutout="views", views=3, masks=(3,), augment="none", epochs=1)
    data, model = colors(), classifier(norm=False, dropout=0)
    hider = Hider(classifier(), recipe, (SIZE, SIZE), asymmetric_losses(recipe))
    training, _ = split(recipe, len(data))
    _, place = next(places(recipe, training))
    shown = hider.hide(place, data.images[place.images], None)
    with torch.no_grad():
        logits = classifier(norm=False, dropout=0)(shown).unflatten(0, (3, -1))
    literal = 0.0
    for image, row in enumerate(data.targets[place.images]):
        for label, present in enumerate(row):
            seen = [logits[view, image, label].item() for view in range(3)]
            worst = min(seen) if present else max(seen)
            literal += asymmetric_loss(
                worst,
                present,
                recipe.focus_positive,
                recipe.focus_negative,
                recipe.clip,
            )
    finetune(model, data, tmp_path / "run", recipe)
    first = logged(tmp_path / "run")[0]
    assert first["loss"] == pytest.approx(literal / len(place.images), rel=1e-4)


def test_a_search_in_another_runtime_finds_the_same_masks(tmp_path):
    data = colors()
    for runtime in ("torch", "onnx"):
        recipe = quick(search="once", masks=(3,), epochs=1, search_runtime=runtime)
        finetune(classifier(), data, tmp_path / runtime, recipe)
    found = [np.load(tmp_path / runtime / "masks.npy") for runtime in ("torch", "onnx")]
    assert (found[0] == found[1]).all(axis=1).mean() > 0.9  # but for ties within rounding


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": 0}, "views must be at least 1, but got 0"),
        ({"search_runtime": "onnx"}, 'other runtimes and precisions need search="once"'),
        ({"search_precision": "bfloat16"}, 'need search="once"'),
    ],
)
def test_recipes_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)
