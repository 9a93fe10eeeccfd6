"""Digit scenes and the network that ships for them."""

import builtins
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from patchdemux.data import digits
from patchdemux.data.digits import digit_scenes
from patchdemux.models.digit_net import digit_net


def micro_average_precision(targets: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the mean precision at the rank of each true label, in percent."""
    ranked = targets.ravel()[np.argsort(-scores.ravel())]
    precision = np.cumsum(ranked) / np.arange(1, ranked.size + 1)
    return 100 * float(precision[ranked == 1].mean())


def test_scenes_have_the_promised_form() -> None:
    scenes = digit_scenes(40)
    assert scenes.images.shape == (40, 3, digits.IMAGE_SIZE, digits.IMAGE_SIZE)
    assert scenes.images.dtype == torch.float32
    assert scenes.images.min() >= 0
    assert scenes.images.max() <= 1
    assert scenes.targets.shape == (40, 10)
    assert scenes.targets.dtype == np.uint8
    assert scenes.class_names == tuple("0123456789")


def test_one_to_four_different_digits_appear() -> None:
    different = digit_scenes(300).targets.sum(axis=1)
    assert set(different.tolist()) == {1, 2, 3, 4}


def test_digits_lie_inside_the_scene_and_apart() -> None:
    for seed in range(100):
        boxes = [box for _, box in digits.draw_layout(np.random.default_rng(seed))]
        covered = np.zeros((digits.IMAGE_SIZE, digits.IMAGE_SIZE), dtype=int)
        for top, left, height, width in boxes:
            covered[top : top + height, left : left + width] += 1
        assert covered.sum() == sum(box.height * box.width for box in boxes)
        assert covered.max() == 1


def test_a_scene_depends_on_its_arguments_alone() -> None:
    scenes, again, fewer = digit_scenes(10), digit_scenes(10), digit_scenes(5)
    assert torch.equal(scenes.images, again.images)
    assert torch.equal(scenes.images[:5], fewer.images)
    assert np.array_equal(scenes.targets[:5], fewer.targets)
    assert not torch.equal(fewer.images, digit_scenes(5, seed=1).images)
    assert not torch.equal(fewer.images, digit_scenes(5, split="validation").images)


def test_splits_share_no_scan() -> None:
    seen = {
        split: {scan.tobytes() for scan in digits.source_scans(split)[0]}
        for split in ("train", "validation", "test")
    }
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert sum(len(digits.source_scans(split)[0]) for split in seen) == 1797


def test_every_split_holds_every_digit_about_equally_often() -> None:
    for split, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        counts = np.bincount(digits.source_scans(split)[1], minlength=10)
        assert np.all(np.abs(counts - 179.7 * share) < 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count must be at least 1, not 0"),
        ({"count": 1, "split": "dev"}, "split must be one of train, validation, test, not 'dev'"),
        ({"count": 1, "seed": -1}, "seed must be 0 or more, not -1"),
    ],
)
def test_bad_arguments_say_what_is_possible(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        digit_scenes(**arguments)


def test_a_missing_scikit_learn_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def import_without_sklearn(name: str, *rest: Any, **options: Any) -> ModuleType:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real_import(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", import_without_sklearn)
    digits.source_scans.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'patchdemux\[demo\]'"):
        digit_scenes(1)


def test_shipped_weights_are_small() -> None:
    weights = files("patchdemux.models") / "weights" / "digits.safetensors"
    assert len(weights.read_bytes()) < 1_000_000


def test_shipped_network_recognizes_test_digits() -> None:
    scenes = digit_scenes(200)
    net = digit_net()
    assert not net.training
    with torch.inference_mode():
        logits = net(scenes.images)
    assert logits.shape == (200, 10)
    assert micro_average_precision(scenes.targets, logits.numpy()) > 95


def test_a_scene_is_classified_alike_alone_and_in_a_batch() -> None:
    images, net = digit_scenes(8).images, digit_net()
    with torch.inference_mode():
        torch.testing.assert_close(net(images)[3:4], net(images[3:4]), rtol=1e-4, atol=1e-4)
