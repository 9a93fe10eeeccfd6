"""Query2Label: a transformer decoder in which every class looks at the feature map with a query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.models.libraries import make_timm, timm_input
from patchdemux.models.loading import load_weights
from patchdemux.threat import Size, as_size

HEADS = 4
"""Attention heads in the decoder of the published models; no tensor tells their number."""


class Query2Label(nn.Module):
    """From normalised images to one logit per class.

    A backbone's feature map passes through encoder layers; then a learned query per class attends to
    it in decoder layers, and a linear judge per class turns what its query found into a logit. The
    parts are called as in the published checkpoints.

    Args:
        backbone: from images to a feature map (image, channel, row, column).
        channels: of the feature map.
        grid: rows and columns of the feature map.
        classes: their number.
        width: of the transformer; a projection comes first where the feature map has another.
        feedforward: width inside the layers.
        encoders, decoders: number of layers.
        heads: of attention.
        dropout: in training.
    """

    position: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        channels: int,
        grid: tuple[int, int],
        classes: int,
        *,
        width: int | None = None,
        feedforward: int | None = None,
        encoders: int = 1,
        decoders: int = 2,
        heads: int = HEADS,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        width = width or channels
        inside = (width, feedforward or 4 * width, heads, dropout)
        self.backbone = backbone
        self.input_proj = nn.Identity() if width == channels else nn.Conv2d(channels, width, 1)
        self.register_buffer("position", sine_positions(width, *grid))
        self.transformer = nn.ModuleDict(
            {
                "encoder": Encoder(EncoderLayer(*inside) for _ in range(encoders)),
                "decoder": Decoder((DecoderLayer(*inside) for _ in range(decoders)), width),
            }
        )
        self.query_embed = nn.Embedding(classes, width)
        self.fc = Judges(classes, width)

    def forward(self, images: Tensor) -> Tensor:
        features = self.input_proj(self.backbone(images))
        if features.shape[1:] != self.position.shape[1:]:
            raise ValueError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels give a feature map of "
                f"{tuple(features.shape[1:])}, but this model was made for "
                f"{tuple(self.position.shape[1:])} (channel, row, column)"
            )
        cells = features.flatten(2).transpose(1, 2)
        places = self.position.flatten(2).transpose(1, 2)
        memory = self.transformer["encoder"](cells, places)
        found = self.transformer["decoder"](self.query_embed.weight, memory, places)
        logits: Tensor = self.fc(found)
        return logits

    def reset_classes(self, classes: int) -> None:
        """Fresh queries and judges, for other classes."""
        width = self.query_embed.embedding_dim
        self.query_embed = nn.Embedding(classes, width)
        self.fc = Judges(classes, width)


def query2label(
    backbone: str,
    class_names: Sequence[str],
    image_size: Size,
    *,
    weights: str | Path | None = None,
    **sizes: Any,
) -> Classifier:
    """Query2Label on any timm backbone, with that backbone's normalisation.

    Args:
        backbone: the name of a timm model.
        class_names: one per class.
        image_size: height and width.
        weights: a state dict; without one the model is untrained.
        sizes: `width`, `feedforward`, `encoders`, `decoders`, `heads`, `dropout` of `Query2Label`.
    """
    size = as_size("image_size", image_size)
    features = LastFeatures(
        make_timm(backbone, size, features_only=True, out_indices=(-1,), feature_cls="getter")
    )
    with torch.no_grad():
        _, channels, rows, columns = features.eval()(torch.zeros(1, 3, *size)).shape
    model = Query2Label(features.train(), channels, (rows, columns), len(class_names), **sizes)
    if weights is not None:
        load_weights(model, weights)
    _, mean, std = timm_input(features.model)
    return Classifier(model, class_names=class_names, image_size=size, mean=mean, std=std)


class LastFeatures(nn.Module):
    """From images to the last feature map of a timm model that answers with feature maps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)[-1]
        return features


class Encoder(nn.Module):
    """Self-attention between the cells of the feature map."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, cells: Tensor, places: Tensor) -> Tensor:
        for layer in self.layers:
            cells = layer(cells, places)
        return cells


class Decoder(nn.Module):
    """What the query of each class finds among the cells."""

    def __init__(self, layers: Iterable[nn.Module], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        queries = queries.expand(len(memory), -1, -1)
        found = torch.zeros_like(queries)
        for layer in self.layers:
            found = layer(found, queries, memory, places)
        result: Tensor = self.norm(found)
        return result


class EncoderLayer(nn.Module):
    """Self-attention, then a feedforward network, each with a residual and a norm after it."""

    def __init__(self, width: int, feedforward: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, cells: Tensor, places: Tensor) -> Tensor:
        placed = cells + places
        attended, _ = self.self_attn(placed, placed, cells, need_weights=False)
        cells = self.norm1(cells + self.dropout(attended))
        inner = self.dropout(torch.relu(self.linear1(cells)))
        result: Tensor = self.norm2(cells + self.dropout(self.linear2(inner)))
        return result


class DecoderLayer(nn.Module):
    """Attention of the queries to the cells, then a feedforward network.

    There is no attention between queries, as in the published models; so `norm1` is missing.
    """

    def __init__(self, width: int, feedforward: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, found: Tensor, queries: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        attended, _ = self.multihead_attn(
            found + queries, memory + places, memory, need_weights=False
        )
        found = self.norm2(found + self.dropout(attended))
        inner = self.dropout(torch.relu(self.linear1(found)))
        result: Tensor = self.norm3(found + self.dropout(self.linear2(inner)))
        return result


class Judges(nn.Module):
    """A linear layer of its own for every class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.W = nn.Parameter(torch.empty(1, classes, width).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(1, classes).uniform_(-bound, bound))

    def forward(self, found: Tensor) -> Tensor:
        return (self.W * found).sum(dim=-1) + self.b


def sine_positions(width: int, rows: int, columns: int) -> Float[Tensor, "1 width rows columns"]:
    """Sines and cosines of row (first half of the channels) and column, as in DETR.

    Coordinates run to 2 pi over the map; wavelengths grow geometrically to 10,000 times that.
    """
    if width % 4:
        raise ValueError(f"the width of the transformer must be a multiple of 4, but got {width}")
    half = width // 2
    waves = 10_000 ** (2 * (torch.arange(half) // 2) / half)
    coded = []
    for cells in (rows, columns):
        angles = torch.arange(1, cells + 1) / (cells + 1e-6) * 2 * math.pi
        angles = angles[:, None] / waves
        coded.append(torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=2).flatten(1))
    row, column = coded
    grid = (rows, columns, half)
    both = torch.cat([row[:, None].expand(grid), column[None].expand(grid)], dim=2)
    return both.permute(2, 0, 1)[None].contiguous()
