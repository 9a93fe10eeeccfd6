"""ONNX, `torch.export` and TorchScript files: the model they were made of is the reference."""

import pickle
import sys
import warnings

import pytest
import torch
from torch import nn

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.models import from_exported, from_onnx, from_torchscript, load
from patchdemux.models.programs import in_batches
from patchdemux.runtimes.identity import model_fields

BATCH = torch.export.Dim("batch")


class Net(nn.Module):
    """Small, with what behaves differently in training: dropout and a batch norm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1)
        )
        self.judge = nn.Linear(4, 2)

    def forward(self, images):
        return self.judge(self.layers(images).flatten(1))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def files(net, tmp_path_factory):
    """The network in every format, for any batch and for batches of three."""
    folder = tmp_path_factory.mktemp("programs")
    for name, count, shapes in (("any", 2, {"images": {0: BATCH}}), ("three", 3, None)):
        images = (torch.rand(count, 3, 12, 10),)
        program = torch.export.export(net, images, dynamic_shapes=shapes)
        torch.export.save(program, folder / f"{name}.pt2")
        with warnings.catch_warnings():  # of what the exporter uses itself
            warnings.simplefilter("ignore")
            torch.onnx.export(program, images, folder / f"{name}.onnx", verbose=False)
    with warnings.catch_warnings():  # of a format that is read here as long as torch reads it
        warnings.filterwarnings("ignore", r"`torch\.jit", category=FutureWarning)
        torch.jit.save(torch.jit.trace(net, torch.rand(2, 3, 12, 10)), folder / "script.pt")
        torch.jit.save(torch.jit.freeze(torch.jit.script(net)), folder / "frozen.pt")
    torch.save(net.state_dict(), folder / "weights.pt")
    return folder


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["any.onnx", "three.onnx", "any.pt2", "three.pt2", "script.pt", "frozen.pt"]
)
def test_programs_answer_as_the_model_they_were_made_of(files, net, name):
    classifier = load(files / name, class_names=["cat", "dog"]).eval()
    assert classifier.class_names == ("cat", "dog")
    assert classifier.image_size == (None if name.endswith(".pt") else (12, 10))
    images = torch.rand(7, 3, 12, 10)
    assert torch.allclose(classifier(images), net(images), atol=1e-5)
    demux = PatchDemux(classifier, PatchThreat(3, 3), image_size=(12, 10))
    plain = PatchDemux(net, PatchThreat(3, 3), image_size=(12, 10))
    found, expected = demux.bounds(images[:1]), plain.bounds(images[:1])
    torch.testing.assert_close(found.lower, expected.lower, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.upper, expected.upper, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "name"),
    [(from_onnx, "any.onnx"), (from_exported, "any.pt2"), (from_torchscript, "script.pt")],
)
def test_normalisation_goes_before_the_program(files, net, make, name):
    classifier = make(files / name, mean=[0.1, 0.2, 0.3], std=[0.5] * 3, image_size=(12, 10))
    images = torch.rand(2, 3, 12, 10)
    plain = Classifier(net, mean=[0.1, 0.2, 0.3], std=[0.5] * 3)
    assert torch.allclose(classifier(images), plain(images), atol=1e-5)


def test_an_onnx_file_is_known_by_its_bytes(files):
    one, other = load(files / "any.onnx"), load(files / "three.onnx")
    assert model_fields(one)["weights"].startswith("sha256:")
    assert model_fields(one)["weights"] != model_fields(other)["weights"]
    copy = pickle.loads(pickle.dumps(one.model))
    images = torch.rand(2, 3, 12, 10)
    assert torch.equal(copy(images), one.model(images))


def test_weights_beside_an_onnx_file_are_part_of_what_it_is(net, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"verbose": False, "external_data": True}
        torch.onnx.export(net, (torch.rand(2, 3, 12, 10),), tmp_path / "net.onnx", **options)
    before = load(tmp_path / "net.onnx").model.digest
    (beside,) = set(tmp_path.iterdir()) - {tmp_path / "net.onnx"}
    content = bytearray(beside.read_bytes())
    content[0] ^= 1
    beside.write_bytes(content)
    assert load(tmp_path / "net.onnx").model.digest != before


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no model")
    with pytest.raises(ValueError, match=rf"{name} cannot be opened as a model: "):
        load(tmp_path / name)


def test_exported_programs_must_take_images(tmp_path):
    class Sum(nn.Module):
        def forward(self, one, other):
            return one + other

    images = torch.rand(2, 3, 4, 4)
    torch.export.save(torch.export.export(Sum(), (images, images)), tmp_path / "sum.pt2")
    with pytest.raises(
        ValueError, match=r"sum\.pt2 .* must have one input .* but has 2: one, other"
    ):
        load(tmp_path / "sum.pt2")


def test_outputs_and_inputs_of_onnx_files(files, net, tmp_path):
    class Two(nn.Module):
        def forward(self, images):
            return images.mean((2, 3)), net(images)

    class Flat(nn.Module):
        def forward(self, values):
            return values * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"verbose": False, "output_names": ["means", "logits"]}
        torch.onnx.export(Two(), (torch.rand(2, 3, 12, 10),), tmp_path / "two.onnx", **options)
        torch.onnx.export(Flat(), (torch.rand(2, 3),), tmp_path / "flat.onnx", verbose=False)
    images = torch.rand(2, 3, 12, 10)
    assert from_onnx(tmp_path / "two.onnx")(images).shape == (2, 3)
    logits = from_onnx(tmp_path / "two.onnx", output="logits")(images)
    assert torch.allclose(logits, net(images), atol=1e-5)
    with pytest.raises(ValueError, match="no output 'scores'; it has means, logits"):
        from_onnx(tmp_path / "two.onnx", output="scores")
    with pytest.raises(ValueError, match=r"must have one input \(image, channel, height, width\)"):
        load(tmp_path / "flat.onnx")


def test_half_precision_onnx_files(net, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = Net().half().eval()
        images = (torch.rand(2, 3, 12, 10).half(),)
        torch.onnx.export(half, images, tmp_path / "half.onnx", verbose=False)
    logits = load(tmp_path / "half.onnx")(images[0].float())
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, half(images[0]).float(), atol=1e-2)


def test_batches_are_filled_up_and_cut():
    seen = []

    def model(images):
        seen.append(len(images))
        return images.flatten(1)

    images = torch.rand(7, 1, 2, 2)
    assert torch.equal(in_batches(model, images, 3), images.flatten(1))
    assert seen == [3, 3, 3]
    assert torch.equal(in_batches(model, images, None), images.flatten(1))


def test_tensors_named_pt_are_no_program(files):
    with pytest.raises(ValueError, match="holds neither a TResNet nor Query2Label"):
        load(files / "weights.pt")
    with pytest.raises(FileNotFoundError, match=r"there is no model file nothing\.onnx"):
        load("nothing.onnx")


def test_onnx_runtime_is_named_where_it_is_missing(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'patchdemux\[onnx\]'"):
        load(files / "any.onnx")
