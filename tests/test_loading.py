"""Models by name, and weights that never run code."""

import pickle
from argparse import Namespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from patchdemux import Classifier
from patchdemux.models.loading import load_model, load_weights, read_state


def two_layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))


def test_the_shipped_network_knows_its_classes_and_size():
    classifier = load_model("digits")
    assert classifier.class_names == tuple("0123456789")
    assert classifier.image_size == (62, 62)


def test_timm_models_bring_their_size_and_normalisation():
    classifier = load_model("timm:resnet10t", class_names=["cat", "dog"])
    assert classifier.image_size == (176, 176)
    assert classifier.class_names == ("cat", "dog")
    assert classifier.normalises
    assert classifier.eval()(torch.rand(2, 3, 64, 64)).shape == (2, 2)
    assert load_model("timm:resnet10t", image_size=96).image_size == (96, 96)


def test_a_function_of_ones_own():
    classifier = load_model("test_loading:two_layers", class_names="ab", image_size=2)
    assert isinstance(classifier, Classifier)
    assert classifier(torch.rand(1, 1, 2, 2)).shape == (1, 2)
    assert classifier.image_size == (2, 2)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s}, lambda s: {"model": s}])
def test_weights_in_the_usual_wrappings(tmp_path, wrap):
    source, target = two_layers(), two_layers()
    state = {f"module.{key}": value for key, value in source.state_dict().items()}
    torch.save(wrap(state), tmp_path / "weights.pth")
    load_weights(target, tmp_path / "weights.pth")
    assert all(
        torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True)
    )


def test_weights_as_safetensors(tmp_path):
    source, target = two_layers(), two_layers()
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    load_weights(target, tmp_path / "weights.safetensors")
    assert torch.equal(source[1].weight, target[1].weight)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    state = two_layers().state_dict()
    state["1.weight"] = torch.zeros(3, 5)
    state["extra"] = state.pop("2.bias")
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(
        ValueError, match=r"2.bias is missing; extra is unexpected; 1.weight has shape"
    ):
        load_weights(two_layers(), tmp_path / "weights.safetensors")


def test_a_weights_file_cannot_run_code(tmp_path):
    class Attack:
        def __reduce__(self):
            return print, ("code ran",)

    with (tmp_path / "weights.pth").open("wb") as file:
        pickle.dump({"state_dict": Attack()}, file, protocol=2)
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_state(tmp_path / "weights.pth")
    torch.save({"state_dict": two_layers().state_dict(), "extra": Attack()}, tmp_path / "new.pth")
    with pytest.raises(
        ValueError, match=r"cannot be read as weights: .*GLOBAL print was not an allow"
    ):
        read_state(tmp_path / "new.pth")


def test_numbers_and_arguments_beside_the_tensors_are_harmless(tmp_path):
    beside = {"best": np.float64(3.5), "epoch": np.int64(2), "args": Namespace(lr=0.1, names=["a"])}
    state = two_layers().state_dict()
    torch.save({"state_dict": state, **beside}, tmp_path / "weights.pth")
    assert read_state(tmp_path / "weights.pth").keys() == state.keys()


@pytest.mark.parametrize("content", [b"", b"no weights at all"])
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_files_that_hold_no_weights(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_state(tmp_path / name)
    torch.save({"state_dict": {}}, tmp_path / "empty.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        read_state(tmp_path / "empty.pth")


def test_only_prefixes_of_all_names_are_dropped(tmp_path):
    state = {"module.a": torch.zeros(1), "b": torch.zeros(1)}
    save_file(state, tmp_path / "weights.safetensors")
    assert read_state(tmp_path / "weights.safetensors").keys() == state.keys()


def test_weights_need_a_module(tmp_path):
    with pytest.raises(TypeError, match="weights need a torch module, but the model is a function"):
        load_weights(lambda images: images, tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "no model is called 'resnet'; a model is \"coco\""),
        ("timm:resnet10x", "timm has no model 'resnet10x'; it has resnet"),
        ("nowhere:f", "cannot find nowhere:f: No module named 'nowhere'"),
        ("test_loading:f", "cannot find test_loading:f"),
    ],
)
def test_models_that_do_not_exist(name, message):
    with pytest.raises(ValueError, match=message):
        load_model(name)
