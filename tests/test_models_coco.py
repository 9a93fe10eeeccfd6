"""The classifier of photos that ships, with random weights in place of the trained ones."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models import coco, coco_classifier, load


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A network whose weights, rounded to half precision, are in place of the shipped ones."""
    torch.manual_seed(0)
    network = timm.create_model(coco.ARCHITECTURE, num_classes=80).eval()
    network.load_state_dict({k: v.half() for k, v in network.state_dict().items()})
    half = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in network.state_dict().items()
    }
    save_file(half, tmp_path / "coco.safetensors")
    monkeypatch.setattr(coco, "WEIGHTS", tmp_path / "coco.safetensors")
    return network


@torch.no_grad()
def test_the_coco_classifier(source):
    classifier = coco_classifier()
    assert classifier.class_names == CLASS_NAMES
    assert classifier.image_size == (224, 224)
    assert not classifier.training
    assert {tensor.dtype for tensor in classifier.parameters()} == {torch.float32}
    images = torch.rand(2, 3, 64, 64)
    expected = source((images - 0.5) / 0.5)
    assert torch.allclose(classifier(images), expected, atol=1e-5)
    assert torch.allclose(load("coco")(images), expected, atol=1e-5)


def test_weights_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "WEIGHTS", tmp_path / "coco.safetensors")
    with pytest.raises(FileNotFoundError, match=r"COCO classifier are missing .*coco\.safetensors"):
        load("coco")


def test_the_classes_of_coco():
    assert len(set(CLASS_NAMES)) == 80
    assert CLASS_NAMES[::20] == ("person", "elephant", "wine glass", "dining table")
    assert CLASS_NAMES[-1] == "toothbrush"


@torch.no_grad()
def test_the_weights_that_ship():
    assert coco.WEIGHTS.stat().st_size <= 10e6
    classifier = coco_classifier()
    scores = classifier(torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (2, 80)
    assert scores.isfinite().all()
    assert not torch.equal(scores[0], scores[1])
