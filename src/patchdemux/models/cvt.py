"""The paper's CvT backbone: Hugging Face's model, made to compute what the published one does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from patchdemux.models.loading import layers, shape_of

STRIDE = 16
"""Pixels per cell of the last feature map."""


class CvtFeatures(nn.Module):
    """From normalised images to the last feature map (image, channel, row, column).

    Args:
        widths, depths, heads: of the three stages: channels, blocks, attention heads.
    """

    def __init__(self, widths: Sequence[int], depths: Sequence[int], heads: Sequence[int]) -> None:
        super().__init__()
        try:
            from transformers import CvtConfig, CvtModel
            from transformers.activations import QuickGELUActivation
            from transformers.models.cvt.modeling_cvt import CvtIntermediate
        except ImportError as error:
            raise ImportError(
                "the CvT backbone needs transformers: pip install 'patchdemux[hf]'"
            ) from error
        config = CvtConfig(
            embed_dim=list(widths),
            depth=list(depths),
            num_heads=list(heads),
            # The library's stochastic depth drops whole images, not residual branches.
            drop_path_rate=[0.0, 0.0, 0.0],
        )
        self.encoder = CvtModel(config).encoder
        for module in self.encoder.modules():
            if isinstance(module, CvtIntermediate):
                module.add_module("activation", QuickGELUActivation())
        self.norm = nn.LayerNorm(widths[-1])

    def forward(self, images: Tensor) -> Tensor:
        # The class token is left aside, as in the published forward pass.
        features: Tensor = self.encoder(images).last_hidden_state
        normed: Tensor = self.norm(features.movedim(1, -1))
        return normed.movedim(-1, 1)


RENAMED = (
    (r"^stage(\d+)\.", r"encoder.stages.\1."),
    (r"\.patch_embed\.proj\.", ".embedding.convolution_embeddings.projection."),
    (r"\.patch_embed\.norm\.", ".embedding.convolution_embeddings.normalization."),
    (r"\.blocks\.(\d+)\.", r".layers.\1."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"\.attn\.conv_proj_q\.", ".attention.attention.convolution_projection_query."),
    (r"\.attn\.conv_proj_k\.", ".attention.attention.convolution_projection_key."),
    (r"\.attn\.conv_proj_v\.", ".attention.attention.convolution_projection_value."),
    (r"(convolution_projection_\w+)\.conv\.", r"\1.convolution_projection.convolution."),
    (r"(convolution_projection_\w+)\.bn\.", r"\1.convolution_projection.normalization."),
    (r"\.attn\.proj_q\.", ".attention.attention.projection_query."),
    (r"\.attn\.proj_k\.", ".attention.attention.projection_key."),
    (r"\.attn\.proj_v\.", ".attention.attention.projection_value."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
"""Names in the published checkpoint, and here; applied in this order."""


def from_published(name: str) -> str:
    """The name here of a tensor of the published backbone.

    >>> from_published("stage2.blocks.7.mlp.fc1.bias")
    'encoder.stages.2.layers.7.intermediate.dense.bias'
    """
    for published, here in RENAMED:
        name = re.sub(published, here, name)
    return name


def widths_and_depths(state: Mapping[str, Tensor], source: str) -> tuple[list[int], list[int]]:
    """Channels and number of blocks of the three stages, off the tensors of a model's backbone."""
    stages = [f"backbone.encoder.stages.{stage}" for stage in range(3)]
    embedding = "embedding.convolution_embeddings.projection.weight"
    widths = [shape_of(f"{stage}.{embedding}", state, source, 4)[0] for stage in stages]
    return widths, [layers(state, f"{stage}.layers") for stage in stages]
