"""TResNet and Query2Label: the published models' own logits, and checkpoints in every wrapping."""

import json

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from conftest import GOLDEN
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models import load, load_checkpoint, query2label
from patchdemux.models.checkpoints import query2label_cvt
from patchdemux.models.cvt import CvtFeatures
from patchdemux.models.loading import read_state
from patchdemux.models.query2label import Query2Label, sine_positions
from patchdemux.models.tresnet import tresnet


def golden(name):
    """The config, tensors in the published format, input and logits of a small model."""
    with np.load(GOLDEN / f"{name}_small.npz") as file:
        state = {key[6:]: torch.from_numpy(file[key]) for key in file if key.startswith("state.")}
        images, logits = (torch.from_numpy(file[key]) for key in ("input", "logits"))
        return json.loads(str(file["config"])), state, images, logits


@pytest.fixture(scope="module")
def resnet():
    return golden("tresnet")


@pytest.fixture(scope="module")
def cvt():
    return golden("query2label_cvt")


def full_size(name):
    """Tensors of the published shapes that take no memory."""
    shapes = json.loads((GOLDEN / "state_dict_shapes.json").read_text())[name]
    return {key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}


def small_query2label(state, config):
    heads = config["cvt"]["num_heads"]
    return query2label_cvt(state, "golden", cvt_heads=heads, heads=config["nheads"]).eval()


# --- the published figures ------------------------------------------------------------------------


@torch.no_grad()
def test_tresnet_gives_the_published_logits(resnet, tmp_path):
    config, state, images, logits = resnet
    torch.save({"model": state, "num_classes": 6}, tmp_path / "asl.pth")
    classifier = load(tmp_path / "asl.pth")
    assert (classifier(images) - logits).abs().max() < 1e-5
    assert classifier.model.num_classes == config["num_classes"]
    assert classifier.image_size == (448, 448)
    assert not classifier.normalises


@torch.no_grad()
def test_query2label_gives_the_published_logits(cvt):
    config, state, images, logits = cvt
    model = small_query2label(state, config)
    assert (model(images) - logits).abs().max() < 1e-5
    # Sizes that no tensor tells do matter.
    other = query2label_cvt(state, "golden", cvt_heads=[1, 1, 1]).eval()
    assert (other(images) - logits).abs().max() > 1e-3


def test_positions_are_the_published_ones(cvt):
    _, state, _, _ = cvt
    assert torch.equal(sine_positions(64, 4, 4), state["backbone.1.pe"])


def test_positions_against_their_definition():
    positions = sine_positions(8, 2, 5)
    assert positions.shape == (1, 8, 2, 5)
    for row, column in ((0, 0), (1, 3)):
        for place, cells, first in ((row, 2, 0), (column, 5, 4)):
            angle = (place + 1) / (cells + 1e-6) * 2 * np.pi
            for pair, wave in enumerate((1, 100)):
                code = positions[0, first + 2 * pair : first + 2 * pair + 2, row, column]
                expected = [np.sin(angle / wave), np.cos(angle / wave)]
                np.testing.assert_allclose(code, expected, atol=1e-6)
    with pytest.raises(ValueError, match="multiple of 4, but got 6"):
        sine_positions(6, 2, 2)


def test_the_full_tresnet_loads_strictly():
    model = tresnet(full_size("tresnet_l"), "tresnet_l")
    assert sum(block.numel() for block in model.parameters()) == sum(
        block.numel() for block in timm.create_model("tresnet_l", num_classes=80).parameters()
    )


def test_the_full_query2label_loads_strictly():
    state = full_size("query2label_cvt_w24_384")
    model = query2label_cvt(state, "query2label")
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == sum(
        tensor.numel() for tensor in state.values()
    )
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    attention = [m for m in model.backbone.modules() if type(m).__name__ == "CvtSelfAttention"]
    assert [block.num_heads for block in attention] == [3] * 2 + [12] * 2 + [16] * 20
    assert model.position.shape[2:] == (24, 24)


# --- files ----------------------------------------------------------------------------------------

WRAPPINGS = {
    "bare": lambda state: state,
    "model": lambda state: {"model": state, "epoch": 3},
    "state_dict": lambda state: {"state_dict": state, "best_mAP": np.float64(0.9)},
    "module": lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}},
    "ema": lambda state: {
        "model": {key: value + 1 for key, value in state.items()},
        "state_dict_ema": {f"module.module.{k}": v for k, v in state.items()},
    },
    "averaged": lambda state: {
        "n_averaged": torch.tensor(5),
        **{f"module._orig_mod.{key}": value for key, value in state.items()},
    },
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_checkpoints_in_every_wrapping(cvt, tmp_path, wrapping):
    _, state, _, _ = cvt
    torch.save(WRAPPINGS[wrapping](state), tmp_path / "checkpoint.pkl")
    found = read_state(tmp_path / "checkpoint.pkl")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_checkpoints_as_safetensors_in_half_precision(resnet, tmp_path):
    _, state, images, logits = resnet
    save_file({key: value.half() for key, value in state.items()}, tmp_path / "half.safetensors")
    classifier = load(tmp_path / "half.safetensors")
    assert {tensor.dtype for tensor in classifier.parameters()} == {torch.float32}
    with torch.no_grad():
        assert (classifier(images) - logits).abs().max() < 0.05


@torch.no_grad()
def test_what_was_loaded_and_saved_again_loads(resnet, cvt, tmp_path):
    config, state, images, logits = resnet
    torch.save(tresnet(state, "golden").state_dict(), tmp_path / "tuned.pth")
    assert (load(tmp_path / "tuned.pth")(images) - logits).abs().max() < 1e-5
    config, state, images, logits = cvt
    again = small_query2label(small_query2label(state, config).state_dict(), config)
    assert (again(images) - logits).abs().max() < 1e-5


def wide_cvt(classes):
    """A small model whose heads have the published width."""
    features = CvtFeatures([64, 64, 128], [1, 2, 3], [1, 1, 2])
    return Query2Label(features, 128, (2, 3), classes, width=64, feedforward=8)


@pytest.mark.parametrize("classes", [80, 3])
def test_query2label_knows_its_size_and_perhaps_its_names(tmp_path, classes):
    model = wide_cvt(classes).eval()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "q2l.pkl")
    classifier = load("q2l-cvt", weights=tmp_path / "q2l.pkl")
    assert classifier.image_size == (32, 48)
    assert classifier.class_names == (CLASS_NAMES if classes == 80 else None)
    images = torch.rand(2, 3, 32, 48)
    with torch.no_grad():
        assert torch.equal(classifier(images), model(images))
    with pytest.raises(ValueError, match="of 32 x 32 pixels give a feature map of"):
        classifier(torch.rand(1, 3, 32, 32))


def test_names_in_the_file_and_normalisation_of_ones_own(resnet, tmp_path):
    _, state, images, logits = resnet
    names = {index: f"thing {index}" for index in reversed(range(6))}
    torch.save({"model": state, "idx_to_class": names}, tmp_path / "asl.pth")
    classifier = load("tresnet_l", weights=tmp_path / "asl.pth", mean=[0.5] * 3, std=[0.5] * 3)
    assert classifier.class_names == tuple(f"thing {index}" for index in range(6))
    with torch.no_grad():
        assert (classifier(images / 2 + 0.5) - logits).abs().max() < 1e-4
    torch.save({"model": state, "idx_to_class": {1: "one"}}, tmp_path / "asl.pth")
    with pytest.raises(ValueError, match="idx_to_class must map 0, 1, 2"):
        load(tmp_path / "asl.pth")
    torch.save({"model": state, "idx_to_class": {0: "one"}}, tmp_path / "asl.pth")
    with pytest.raises(ValueError, match="has 6 classes, but names 1"):
        load(tmp_path / "asl.pth")


# --- what does not fit ----------------------------------------------------------------------------


def test_tensors_that_do_not_fit_are_named(resnet, cvt, tmp_path):
    _, state, _, _ = resnet
    state = dict(state)
    state["head.fc.weight"] = torch.zeros(6, 5)
    state["head.extra"] = state.pop("body.layer1.0.se.fc1.bias")
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth does not fit the model") as error:
        load(tmp_path / "a.pth")
    for problem in (
        "body.layer1.0.se.fc1.bias is missing",
        "head.extra is unexpected",
        "head.fc.weight has shape (6, 5) instead of (6, 512)",
    ):
        assert problem in str(error.value)
    config, state, _, _ = cvt
    for name in ("query_embed.weight", "fc.W", "backbone.0.stage1.patch_embed.proj.weight"):
        with pytest.raises(ValueError, match="is missing"):
            small_query2label({k: v for k, v in state.items() if k != name}, config)
    with pytest.raises(ValueError, match=r"query_embed.weight has shape \(448,\)"):
        small_query2label(
            {**state, "query_embed.weight": state["query_embed.weight"].flatten()}, config
        )


def test_other_models_and_missing_files(resnet, tmp_path):
    _, state, _, _ = resnet
    torch.save({"layer.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"neither a TResNet nor Query2Label.*layer\.weight"):
        load(tmp_path / "other.pth")
    torch.save(state, tmp_path / "tresnet.pth")
    with pytest.raises(ValueError, match="holds weights of tresnet_l, not of q2l-cvt"):
        load("q2l-cvt", weights=tmp_path / "tresnet.pth")
    with pytest.raises(ValueError, match="q2l-cvt needs weights"):
        load("q2l-cvt")
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        load(tmp_path / "nothing.pth")
    with pytest.raises(ValueError, match="brings its own weights"):
        load(tmp_path / "tresnet.pth", weights=tmp_path / "tresnet.pth")
    assert load_checkpoint(tmp_path / "tresnet.pth").class_names is None


# --- any timm backbone ----------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["resnet10t", "vit_tiny_patch16_224"])
def test_query2label_on_a_timm_backbone(backbone, tmp_path):
    names = ["cat", "dog", "bird"]
    sizes = {"width": 32, "feedforward": 48, "decoders": 1}
    classifier = query2label(backbone, names, 64, **sizes)
    assert classifier.image_size == (64, 64)
    assert classifier.normalises
    images = torch.rand(2, 3, 64, 64)
    logits = classifier.train()(images)
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(part.grad is not None for part in classifier.model.fc.parameters())
    torch.save(classifier.model.state_dict(), tmp_path / "tuned.pth")
    again = query2label(backbone, names, 64, weights=tmp_path / "tuned.pth", **sizes)
    with torch.no_grad():
        assert torch.allclose(again.eval()(images), classifier.eval()(images), atol=1e-6)
