"""New heads: for models of timm, torchvision, Hugging Face, Query2Label, and others."""

import pytest
import torch
import torchvision
from torch import nn

from patchdemux import Classifier
from patchdemux.models import from_hugging_face, from_timm, from_torchvision, query2label
from patchdemux.training import with_classes
from test_models_paper import golden, small_query2label, tresnet
from tiny_training import network

NAMES = ("cat", "dog", "fox", "hen", "owl")


class Named(nn.Module):
    def __init__(self, name, part):
        super().__init__()
        self.body = nn.Flatten()
        setattr(self, name, part)
        self.name = name

    def forward(self, images):
        return getattr(self, self.name)(self.body(images))


def hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    return from_hugging_face(transformers.ViTForImageClassification(config))


def paper_tresnet():
    return Classifier(tresnet(golden("tresnet")[1], "golden"), image_size=64)


def paper_query2label():
    config, state, images, _ = golden("query2label_cvt")
    return Classifier(small_query2label(state, config), image_size=images.shape[-2:])


def vision(name, **sizes):
    return lambda: from_torchvision(
        torchvision.models.get_model(name, weights=None, num_classes=3, **sizes)
    )


MODELS = {
    "timm": lambda: from_timm("resnet10t", class_names=["a", "b"], image_size=32),
    "timm vit": lambda: from_timm("test_vit", class_names=["a", "b"], image_size=160),
    "tresnet": paper_tresnet,
    "query2label cvt": paper_query2label,
    "query2label": lambda: query2label("resnet10t", ["a"], 64, width=32, decoders=1),
    "resnet": vision("resnet18"),  # fc
    "mobilenet": vision("mobilenet_v3_small"),  # classifier, a sequence
    "squeezenet": vision("squeezenet1_1"),  # a convolution, with a pool behind it
    "swin": lambda: from_torchvision(  # head
        torchvision.models.SwinTransformer([4, 4], 8, [2], [2], [4, 4], num_classes=3)
    ),
    "vision transformer": lambda: from_torchvision(  # heads, a sequence
        torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 16, num_classes=3)
    ),
    "hugging face": hugging_face,
    "sequence": lambda: Classifier(network(), mean=[0.5] * 3, std=[0.5] * 3),
    "plain": lambda: Classifier(Named("head", nn.Linear(3 * 32 * 32, 2, bias=False))),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_new_head_answers_for_the_new_classes(kind):
    old = MODELS[kind]()
    before = {name: value.clone() for name, value in old.model.state_dict().items()}
    new = with_classes(old, NAMES)
    height, width = new.image_size or (32, 32)
    with torch.no_grad():
        assert new.eval()(torch.rand(2, 3, height, width)).shape == (2, 5)
    assert new.class_names == NAMES
    assert (new.image_size, new.normalises) == (old.image_size, old.normalises)
    assert torch.equal(new.mean, old.mean)
    assert new.channels_last == old.channels_last
    after = new.model.state_dict()
    changed = {
        name for name in before if name not in after or not torch.equal(before[name], after[name])
    }
    assert 0 < len(changed) <= 4  # the head, or judges and queries; nothing else
    assert all(parameter.requires_grad for parameter in new.model.parameters())


def test_a_hugging_face_model_knows_its_new_names():
    model = with_classes(hugging_face(), NAMES).model.model
    assert model.config.num_labels == 5
    assert from_hugging_face(model).class_names == NAMES


@pytest.mark.parametrize(
    "model",
    [
        Named("judge", nn.Linear(12, 2)),
        Named("fc", nn.Identity()),
        Named("fc", nn.Sequential(nn.Flatten())),
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    ],
)
def test_a_model_whose_head_is_not_known(model):
    with pytest.raises(
        ValueError, match=r"do not know which layer of .* gives the classes: exchange"
    ):
        with_classes(Classifier(model), NAMES)


def test_what_is_no_module():
    with pytest.raises(TypeError, match="only a torch module can be given a new head"):
        with_classes(Classifier(lambda images: images.mean(dim=(2, 3))), NAMES)
