"""Vision Transformers that compute only the tokens they are shown (Salman et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.runtimes.base import options_of


def drop_hidden_tokens(model: nn.Module) -> Classifier:
    """The same classifier, but tokens with hidden pixels are left out, which makes views cheap.

    On whole images it gives the same scores. A token is used only when all of its pixels are visible,
    so that the scores depend on visible pixels only.

    Args:
        model: a timm `VisionTransformer`, or a `Classifier` of one, such as `from_timm` makes.
    """
    classifier = Classifier.of(model)
    options = {**options_of(classifier), "visible_channel": True}
    dropping = Classifier(VisibleTokens(classifier.model), **options)
    dropping.channels_last = False  # tokens are cut out, nothing is convolved
    return dropping


class VisibleTokens(nn.Module):
    """A timm Vision Transformer of images with a last channel that says which pixels are visible.

    Attributes:
        vit: the transformer.
        token_size: height and width of a token, in pixels.
    """

    def __init__(self, vit: Any) -> None:
        super().__init__()
        try:
            from timm.layers.patch_embed import PatchEmbed
            from timm.models import VisionTransformer
        except ImportError as error:
            raise ImportError("timm models need timm: pip install 'patchdemux[models]'") from error
        # Others, such as distilled or hybrid ones, make or place their tokens in ways of their own.
        if type(vit) is not VisionTransformer or type(vit.patch_embed) is not PatchEmbed:
            raise ValueError(
                f"hidden tokens can be dropped from timm's VisionTransformer with a plain patch "
                f"embedding, but got {type(vit).__name__}"
            )
        if vit.dynamic_img_size or vit.patch_embed.dynamic_img_pad:
            raise ValueError("hidden tokens can be dropped only where images have a fixed size")
        self.vit = vit
        self.token_size: tuple[int, int] = tuple(vit.patch_embed.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        size, wanted = tuple(images.shape[-2:]), tuple(self.vit.patch_embed.img_size)
        if size != wanted:
            raise ValueError(f"this transformer wants images of {wanted}, but got {size}")
        height, width = self.token_size
        rows, columns = self.vit.patch_embed.grid_size
        # Where the size is no multiple of a token's, the embedding leaves out the rest; so do we.
        tokens = images[..., : rows * height, : columns * width]
        tokens = tokens.unflatten(2, (rows, height)).unflatten(4, (columns, width))
        tokens = tokens.permute(0, 2, 4, 1, 3, 5).flatten(
            1, 2
        )  # image, token, channel, row, column
        shown = tokens[:, :, -1].amin(dim=(2, 3)) > 0
        counts = shown.sum(dim=1)
        if not counts.all():
            raise ValueError(
                f"a view shows no whole token of {height} x {width} pixels, so there is nothing to see"
            )
        owners, places = shown.nonzero(as_tuple=True)
        embedded = self._embed(tokens[..., :-1, :, :][owners, places], places)
        order, logits = [], []
        for count in counts.unique().tolist():  # views with as many tokens make one batch
            views = counts == count
            order.append(views.nonzero()[:, 0])
            logits.append(self._logits(embedded[views[owners]].unflatten(0, (-1, count))))
        return torch.cat(logits)[torch.cat(order).argsort()]

    def _embed(self, pixels: Tensor, places: Tensor) -> Tensor:
        """What the first block is told of tokens: (token, channel, row, column) to (token, feature)."""
        vit, embed = self.vit, self.vit.patch_embed
        weights = embed.proj.weight.flatten(1)
        tokens: Tensor = embed.norm(
            nn.functional.linear(pixels.flatten(1), weights, embed.proj.bias)
        )
        if vit.pos_embed is not None:
            tokens = tokens + vit.pos_embed[0, -embed.num_patches :][places]
        return tokens

    def _logits(self, tokens: Tensor) -> Tensor:
        """Scores from embedded tokens (image, token, feature)."""
        vit = self.vit
        extra: list[Tensor] = [
            token for token in (vit.cls_token, vit.reg_token) if token is not None
        ]
        if extra:
            prefix = torch.cat(extra, dim=1)
            if vit.pos_embed is not None and not vit.no_embed_class:
                prefix = prefix + vit.pos_embed[:, : vit.num_prefix_tokens]
            tokens = torch.cat([prefix.expand(len(tokens), -1, -1), tokens], dim=1)
        features = vit.norm(vit.blocks(vit.norm_pre(vit.pos_drop(tokens))))
        logits: Tensor = vit.forward_head(features)
        return logits
