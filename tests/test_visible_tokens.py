"""Vision Transformers without their hidden tokens: the same scores, and nothing of what is hidden."""

import numpy as np
import pytest
import timm
import torch
from timm.models import VisionTransformer

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.defenses.smoothing import Smoothing
from patchdemux.engine import Engine
from patchdemux.models import drop_hidden_tokens, from_timm

SIZE = 24
SMALL = {"img_size": SIZE, "patch_size": 8, "num_classes": 3, "embed_dim": 16, "depth": 2}
KINDS = [
    {},
    {"global_pool": "avg"},
    {"class_token": False, "global_pool": "map"},
    {"reg_tokens": 2, "no_embed_class": True},
    {"pre_norm": True, "pos_embed": "none"},
]


def transformer(**options):
    torch.manual_seed(0)
    vit = VisionTransformer(**{**SMALL, "num_heads": 2, **options}).eval()
    for weights in vit.parameters():  # of those that begin as 0, too
        torch.nn.init.normal_(weights, std=0.2)
    return vit


def literal_scores(vit, image, shown):
    """One image, its tokens embedded as ever and then picked one by one, with timm's own parts."""
    tokens = vit.patch_embed(image[None])
    everything = vit._pos_embed(tokens)
    prefix = everything.shape[1] - tokens.shape[1]
    kept = [everything[:, :prefix], *(everything[:, [prefix + token]] for token in shown)]
    x = vit.norm(vit.blocks(vit.norm_pre(torch.cat(kept, dim=1))))
    return vit.forward_head(x)[0].detach().numpy()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_scores_are_those_of_the_visible_tokens_alone(options):
    vit = transformer(**options)
    images = torch.rand(2, 3, SIZE, SIZE)
    plain = Classifier(vit, mean=[0.4] * 3, std=[0.3] * 3)
    classifier = drop_hidden_tokens(plain)
    hidden = np.zeros((4, SIZE, SIZE), bool)
    hidden[1, :, 8:] = True
    hidden[2, 5:10] = True  # two rows of tokens are partly visible, and not used
    hidden[3, 8:, 8:] = True
    shown = [range(9), [0, 3, 6], [6, 7, 8], [0, 1, 2, 3, 6]]
    engine = Engine(classifier, batch_size=3)  # views with unlike numbers of tokens in one batch
    scores = engine.masked_scores(images, hidden, np.arange(4)[:, None])
    for i, image in enumerate((images - 0.4) / 0.3):
        for view, tokens in enumerate(shown):
            expected = literal_scores(vit, image, tokens)
            np.testing.assert_allclose(scores[i, view], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores[:, 0], Engine(plain).scores(images), rtol=1e-4, atol=1e-5)


def test_only_visible_tokens_are_computed():
    classifier = drop_hidden_tokens(transformer())
    seen = []
    classifier.model.vit.blocks[0].register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
    defense = Smoothing("columns", width=8, stride=8)
    bounds = PatchDemux(classifier, PatchThreat(3, 3), defense, batch_size=6).bounds(
        torch.rand(2, 3, SIZE, SIZE)
    )
    # The images as they are, then every band with its three tokens and the class token.
    assert seen == [(2, 10, 16), (6, 4, 16)]
    assert len(bounds.lower[0]) == 2


def test_gradients_reach_the_weights():
    classifier = drop_hidden_tokens(transformer())
    views = torch.rand(2, 4, SIZE, SIZE)
    views[:, 3] = 1
    views[0, :, :, 8:] = 0
    classifier(views).sum().backward()
    assert all(weights.grad is not None for weights in classifier.parameters())


def test_options_stay_as_they_were():
    classifier = from_timm("vit_tiny_patch16_224", class_names=["cat", "dog"])
    dropping = drop_hidden_tokens(classifier)
    assert (dropping.class_names, dropping.image_size) == (("cat", "dog"), (224, 224))
    assert dropping.mean.tolist() == classifier.mean.tolist()
    assert dropping.model.token_size == (16, 16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: drop_hidden_tokens(timm.create_model("resnet10t")), "but got ResNet"),
        (
            lambda: drop_hidden_tokens(timm.create_model("deit_tiny_distilled_patch16_224")),
            "but got VisionTransformerDistilled",
        ),
        (lambda: drop_hidden_tokens(transformer(dynamic_img_size=True)), "a fixed size"),
        (
            lambda: smoothed(Smoothing(width=12, stride=8)),
            "windows of width 12 and stride 8 on 24 pixels do not align with the model's tokens of "
            "8 x 8 pixels: all three must be multiples of 8",
        ),
        (lambda: smoothed(Smoothing(width=8, stride=4)), "do not align"),
        (lambda: smoothed(Smoothing(width=8, stride=8), 32), r"wants images of \(24, 24\)"),
        (
            lambda: Engine(drop_hidden_tokens(transformer())).masked_scores(
                torch.rand(1, 3, SIZE, SIZE), np.ones((1, SIZE, SIZE), bool), np.zeros((1, 1), int)
            ),
            "a view shows no whole token of 8 x 8 pixels",
        ),
    ],
)
def test_what_cannot_be_dropped_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def smoothed(defense, size=SIZE):
    images = torch.rand(1, 3, size, size)
    PatchDemux(drop_hidden_tokens(transformer()), PatchThreat(2, 2), defense).bounds(images)
