"""Models of timm, torchvision and Hugging Face: their own preprocessing is the reference."""

import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import nn
from torchvision import models as torchvision_models
from torchvision.transforms import v2

from patchdemux import PatchDemux, PatchThreat
from patchdemux.models import from_hugging_face, from_timm, from_torchvision, load
from patchdemux.models.libraries import wanted_input

PHOTO = torch.randint(
    0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def scaled(image):
    """A photo of the model's size as the package hands it on: in [0, 1]."""
    return image[None].float() / 255


# --- timm -----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"])
def test_timm_models_see_what_timm_would_show_them(name):
    classifier = from_timm(name, class_names=["cat", "dog"], image_size=64).eval()
    assert classifier.image_size == (64, 64)
    config = resolve_model_data_config(classifier.model) | {"input_size": (3, 64, 64)}
    config["crop_pct"] = 1.0
    picture = Image.fromarray(PHOTO.permute(1, 2, 0).numpy())
    expected = classifier.model(create_transform(**config)(picture)[None])
    assert torch.allclose(classifier(scaled(PHOTO)), expected, atol=1e-5)


def test_a_timm_model_and_weights_from_a_file(tmp_path):
    model = timm.create_model("resnet10t", num_classes=2)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    for made in (
        from_timm("resnet10t", weights=tmp_path / "weights.pth", class_names="ab"),
        from_timm(timm.create_model("resnet10t", num_classes=2), weights=tmp_path / "weights.pth"),
        load("timm:resnet10t", weights=tmp_path / "weights.pth", class_names="ab"),
    ):
        assert made.image_size == (176, 176)
        assert torch.equal(made.model.fc.weight, model.fc.weight)
    with pytest.raises(ValueError, match=r"fc\.weight has shape \(2, 512\) instead of \(3, 512\)"):
        load("timm:resnet10t", weights=tmp_path / "weights.pth", class_names="abc")


# --- torchvision ----------------------------------------------------------------------------------


@torch.no_grad()
def test_torchvision_models_see_what_torchvision_would_show_them():
    classifier = from_torchvision("squeezenet1_1", class_names=["cat", "dog"]).eval()
    assert classifier.image_size == (224, 224)
    photo = PHOTO.repeat(1, 4, 4)[:, :224, :224].contiguous()
    transforms = torchvision_models.SqueezeNet1_1_Weights.DEFAULT.transforms()
    transforms.resize_size = [224]  # the photo has its size already
    expected = classifier.model(transforms(photo)[None])
    assert expected.shape == (1, 2)
    assert torch.allclose(classifier(scaled(photo)), expected, atol=1e-4)


def test_a_torchvision_model_with_transforms_of_ones_own(tmp_path):
    model = torchvision_models.squeezenet1_1(weights=None, num_classes=3)
    transforms = v2.Compose(
        [
            v2.Resize((32, 48)),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5, 0.4, 0.3], [0.1, 0.2, 0.3]),
        ]
    )
    classifier = from_torchvision(model, transforms=transforms, class_names="abc")
    assert classifier.image_size == (32, 48)
    assert torch.allclose(classifier.mean.flatten(), torch.tensor([0.5, 0.4, 0.3]), atol=1e-5)
    assert torch.allclose(classifier.std.flatten(), torch.tensor([0.1, 0.2, 0.3]), atol=1e-5)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    again = load("torchvision:squeezenet1_1", weights=tmp_path / "weights.pth", class_names="abc")
    assert torch.equal(again.model.classifier[1].weight, model.classifier[1].weight)
    assert from_torchvision(model).image_size is None
    with pytest.raises(ValueError, match="no classification model 'resnet1'"):
        load("torchvision:resnet1")


def test_models_that_renormalise_inside_are_made_as_their_weights_expect():
    assert from_torchvision("googlenet").model.transform_input


def test_preprocessing_that_is_measured():
    assert wanted_input(lambda photo: photo.float() / 255) == {"image_size": None}
    assert wanted_input(v2.Compose([v2.Resize((8, 9)), v2.ToDtype(torch.float32, scale=True)])) == {
        "image_size": (8, 9)
    }
    for wrong in (lambda photo: (photo / 255) ** 2, lambda photo: 1 - photo / 255):
        with pytest.raises(ValueError, match="no normalisation per channel: wrap the model"):
            wanted_input(wrong)


# --- Hugging Face ---------------------------------------------------------------------------------

MULTI = {
    "id2label": {0: "cat", 1: "dog", 2: "bird"},
    "label2id": {"cat": 0, "dog": 1, "bird": 2},
    "problem_type": "multi_label_classification",
}


def tiny_vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        **MULTI,
    )
    return transformers.ViTForImageClassification(config).eval()


def tiny_convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], **MULTI)
    return transformers.ConvNextForImageClassification(config).eval()


PROCESSORS = {
    "vit": (
        tiny_vit,
        lambda: transformers.ViTImageProcessor(
            size={"height": 32, "width": 32}, image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4]
        ),
    ),
    "cropped": (
        tiny_convnext,
        lambda: transformers.CLIPImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
    ),
    "normalised twice": (
        tiny_convnext,
        lambda: transformers.EfficientNetImageProcessor(
            size={"height": 32, "width": 32}, include_top=True
        ),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", PROCESSORS)
def test_hugging_face_models_see_what_their_processor_would_show_them(kind, tmp_path):
    make, process = PROCESSORS[kind]
    model, processor = make(), process()
    photo = PHOTO[:, :32, :32].contiguous()
    expected = model(**processor(images=photo, return_tensors="pt")).logits
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    for classifier in (from_hugging_face(model, processor=processor), load(f"hf:{tmp_path}")):
        assert classifier.class_names == ("cat", "dog", "bird")
        assert classifier.image_size == (32, 32)
        assert torch.allclose(classifier.eval()(scaled(photo)), expected, atol=1e-5)


def test_a_defended_hugging_face_model():
    classifier = from_hugging_face(tiny_vit())
    assert classifier.image_size is None
    assert not classifier.normalises
    demux = PatchDemux(classifier, PatchThreat(4, 4), image_size=32)
    bounds = demux.bounds(torch.rand(1, 3, 32, 32))
    assert bounds.lower.shape[2] == 3
    assert np.all(bounds.lower <= bounds.upper)


def test_only_folders_are_read():
    with pytest.raises(FileNotFoundError, match="google/vit is no folder of a saved Hugging Face"):
        load("hf:google/vit")
    with pytest.raises(ValueError, match="brings its own weights"):
        load("hf:folder", weights="weights.pth")


# --- what is not installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("timm:resnet10t", "timm", "models"),
        ("torchvision:resnet18", "torchvision", "models"),
        ("hf:{folder}", "transformers", "hf"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(name, module, extra, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'patchdemux\[{extra}\]'"):
        load(name.format(folder=tmp_path))


def test_the_package_imports_without_any_of_them():
    code = (
        "import sys\n"
        "for name in ('timm', 'torchvision', 'transformers', 'onnxruntime'): sys.modules[name] = None\n"
        "import patchdemux.models as models\n"
        "assert models.load('digits').image_size == (62, 62)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_plain_module_needs_no_library():
    assert from_torchvision(nn.Flatten()).class_names is None
