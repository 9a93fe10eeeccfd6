"""Detectors and ensembles of binary models as multi-label classifiers."""

import pytest
import torch
import transformers
from torch import nn
from torchvision.models import detection

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.models import (
    from_binary_models,
    from_detector,
    listed_boxes,
    sigmoid_boxes,
    softmax_boxes,
)
from patchdemux.models.detectors import log_odds

# --- detectors ------------------------------------------------------------------------------------


def torchvision_detector(name):
    """A detector with three classes beside the background, and random weights."""
    torch.manual_seed(0)
    small = {"weights": None, "weights_backbone": None, "num_classes": 4}
    if name == "retinanet":
        backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8))
        backbone.out_channels = 8
        sizes = detection.anchor_utils.AnchorGenerator(((16,),), ((1.0,),))
        return detection.RetinaNet(
            backbone, 4, min_size=64, max_size=64, anchor_generator=sizes, score_thresh=0.0
        ).eval()
    if name == "ssdlite":
        return detection.ssdlite320_mobilenet_v3_large(**small, score_thresh=0.0).eval()
    sizes = {"min_size": 64, "max_size": 64}
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        **small, **sizes, box_score_thresh=0.0
    ).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", ["retinanet", "ssdlite", "fasterrcnn"])
def test_torchvision_detectors_score_a_class_by_its_best_box(name):
    model = torchvision_detector(name)
    classifier = from_detector(
        model, listed_boxes(4), classes=[1, 2, 3], class_names=["cat", "dog", "bird"]
    )
    images = torch.rand(2, 3, 64, 64)
    logits = classifier.eval()(images)
    assert logits.shape == (2, 3)
    for row, answer in zip(logits, model(list(images)), strict=True):
        for index, label in enumerate((1, 2, 3)):
            of_class = answer["scores"][answer["labels"] == label]
            best = max(of_class.tolist(), default=1e-4)
            assert torch.sigmoid(row[index]).item() == pytest.approx(best, abs=1e-5)


@torch.no_grad()
def test_the_best_box_of_a_retinanet_is_its_best_anchor():
    """Nothing that comes after the scores of all anchors (limits, overlaps) changes the maximum."""
    model = torchvision_detector("retinanet")
    images = torch.rand(2, 3, 64, 64)
    inputs, _ = model.transform(list(images))
    anchors = model.head([model.backbone(inputs.tensors)])["cls_logits"]
    found = from_detector(model, listed_boxes(4))(images)
    assert torch.allclose(found, anchors.amax(dim=1), atol=1e-3)


def test_a_class_without_any_box_gets_the_floor():
    empty = {"labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}
    full = {"labels": torch.tensor([1, 1, 2]), "scores": torch.tensor([0.2, 0.9, 1.0])}
    boxes = listed_boxes(3, floor=0.01)([empty, full])
    assert boxes.shape == (2, 4, 3)
    best = torch.sigmoid(boxes.amax(dim=1))
    assert torch.allclose(best, torch.tensor([[0.01] * 3, [0.01, 0.9, 1.0]]), atol=1e-6)
    assert boxes.isfinite().all()


def tiny_detr():
    torch.manual_seed(0)
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "num_queries": 5}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    wide = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_labels": 3}
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, backbone=None, **sizes, **heads, **wide
    )
    return transformers.DetrForObjectDetection(config).eval()


@torch.no_grad()
def test_detr_scores_a_class_by_its_best_query():
    model = tiny_detr()
    names = list(model.config.id2label.values())
    classifier = from_detector(model, softmax_boxes, class_names=names, mean=[0.5], std=[0.5])
    images = torch.rand(2, 3, 64, 64)
    best = model((images - 0.5) / 0.5).logits.softmax(dim=-1)[..., :-1].amax(dim=1)
    assert torch.allclose(torch.sigmoid(classifier.eval()(images)), best, atol=1e-5)
    independent = from_detector(model, sigmoid_boxes, classes=[2, 0])(images)
    assert torch.allclose(independent, model(images).logits.amax(dim=1)[:, [2, 0]], atol=1e-5)


@torch.no_grad()
def test_a_defended_detector():
    classifier = from_detector(tiny_detr(), softmax_boxes, image_size=(64, 64))
    images = torch.rand(1, 3, 64, 64)
    bounds = PatchDemux(classifier, PatchThreat(8, 8)).bounds(images)
    assert (bounds.lower <= bounds.upper).all()


def test_log_odds_against_their_definition_in_double():
    logits = torch.randn(200, 5, dtype=torch.float64) * 20
    probabilities = logits.softmax(dim=-1)
    others = probabilities.sum(dim=-1, keepdim=True) - probabilities
    plain = (probabilities / others).log()
    sure = others > 1e-9  # where the plain formula still has digits
    assert sure.double().mean() > 0.8
    assert torch.allclose(log_odds(logits)[sure], plain[sure], atol=1e-5)
    assert torch.allclose(log_odds(logits.float()), log_odds(logits).float(), rtol=1e-4, atol=1e-4)
    extreme = torch.tensor([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]])
    found = log_odds(extreme)
    assert found.isfinite().all()
    assert torch.allclose(found[1], torch.full((3,), 0.5).log())  # one to two, three times


def test_scores_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \(image, box, class\), but got \(2, 3\)"):
        from_detector(lambda images: images, lambda answer: torch.zeros(2, 3))(
            torch.rand(2, 3, 4, 4)
        )
    with pytest.raises(ValueError, match="but got list"):
        from_detector(lambda images: images, lambda answer: [])(torch.rand(2, 3, 4, 4))


# --- binary models --------------------------------------------------------------------------------


@torch.no_grad()
def test_binary_models_side_by_side():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
    two = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    three = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(12, 1)), mean=[0.5], std=[0.25])
    models = [one, two, three, lambda images: images.mean(dim=(1, 2, 3))]
    classifier = from_binary_models(models, class_names="abcd", image_size=2)
    images = torch.rand(5, 3, 2, 2)
    logits = classifier.eval()(images)
    assert logits.shape == (5, 4)
    assert torch.equal(logits[:, 0], one(images)[:, 0])
    # A softmax over two logits is a sigmoid of their difference.
    assert torch.allclose(torch.sigmoid(logits[:, 1]), two(images).softmax(dim=1)[:, 1])
    assert torch.equal(logits[:, 2], three.model((images - 0.5) / 0.25)[:, 0])
    assert torch.equal(logits[:, 3], images.mean(dim=(1, 2, 3)))
    assert len(list(classifier.parameters())) == 6
    assert not one.training


def test_what_is_no_binary_model():
    with pytest.raises(ValueError, match="needs at least one binary model"):
        from_binary_models([])
    wrong = from_binary_models([lambda images: images.mean(dim=(2, 3))])
    with pytest.raises(ValueError, match=r"binary model 0 must answer .* but answered \(2, 3\)"):
        wrong(torch.rand(2, 3, 4, 4))
