"""Interval bound propagation through small networks, sound in floating point.

Every layer takes the intervals in which its inputs lie to such for its outputs. Affine layers do so by
midpoint and radius; all others here are monotone, so the ends of an interval go through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

MONOTONE = (
    nn.ReLU,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.Flatten,
)
AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
IGNORED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
"""They do nothing in eval mode."""

SUPPORTED = (nn.Conv1d, nn.Conv2d, nn.Linear, *NORMS, *MONOTONE, *AVERAGES, *IGNORED)


class Interval(NamedTuple):
    """Numbers between two tensors of one shape, (image, ...)."""

    low: Tensor
    high: Tensor


def layers_of(model: Any) -> list[nn.Module]:
    """The layers of a sequential network in order, or an error that names the first it cannot take.

    Types must be exact: a class derived from a layer may compute something else.
    """
    layers = []
    for name, layer in _flat("", model):
        why = ""
        if type(layer) not in SUPPORTED:
            why = f"is a {type(layer).__name__}"
        elif layer._forward_hooks or layer._forward_pre_hooks:
            why = "has hooks, which may change what it computes"
        elif getattr(layer, "padding_mode", "zeros") != "zeros":
            why = f"pads with {layer.padding_mode!r}, not with zeros"
        elif getattr(layer, "divisor_override", None) is not None:
            why = "divides by a number of its own"
        elif isinstance(layer, NORMS) and layer.running_mean is None:
            why = "normalises by the batch, so that the images of a batch depend on each other"
        if why:
            names = ", ".join(kind.__name__ for kind in SUPPORTED)
            raise ValueError(
                f"intervals cannot go through {name}, which {why}: the network must be an "
                f"nn.Sequential of {names}, or of such nn.Sequentials"
            )
        layers.append(layer)
    return layers


def _flat(name: str, model: Any) -> Iterator[tuple[str, Any]]:
    """All layers with their names."""
    if type(model) is nn.Sequential:
        for child, layer in model.named_children():
            yield from _flat(f"{name}.{child}" if name else f"layer {child}", layer)
    else:
        yield name or "the model", model


def propagate(layers: Sequence[nn.Module], inputs: Interval, unit: float) -> Interval:
    """Where the outputs lie when the inputs lie in an interval, in eval mode.

    With the unit roundoff of the numbers, this holds for the outputs as they are computed in these
    numbers, by these layers, in any order of sums; with 0, for those in exact arithmetic, up to
    rounding, which will do for training.
    """
    for layer in layers:
        inputs = _through(layer, inputs, unit)
    return inputs


def scaled(inputs: Interval, scale: Tensor, shift: Tensor, size: Tensor, unit: float) -> Interval:
    """Intervals of `scale * x + shift`, where `size` is at least what is added on the way."""
    middle, radius = _halves(inputs)
    slack = _slack(inputs, scale.abs(), size, 1, unit)
    return _around(middle * scale + shift, radius * scale.abs() + slack)


def _through(layer: nn.Module, inputs: Interval, unit: float) -> Interval:
    if isinstance(layer, IGNORED):
        return inputs
    if isinstance(layer, MONOTONE):
        return Interval(layer(inputs.low), layer(inputs.high))
    if isinstance(layer, AVERAGES):
        low, high = layer(inputs.low), layer(inputs.high)
        one = low.new_ones(())
        slack = _slack(inputs, one, 0 * one, inputs.low[0].numel(), unit)
        return Interval(low - slack, high + slack)
    if isinstance(layer, NORMS):
        return _normalised(layer, inputs, unit)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
    return _weighted(layer, inputs, unit)


def _normalised(layer: nn.BatchNorm1d | nn.BatchNorm2d, inputs: Interval, unit: float) -> Interval:
    """Batch normalisation by the statistics of training."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    scale = (layer.running_var + layer.eps).rsqrt()
    bias = torch.zeros_like(scale)
    if layer.affine:
        scale, bias = scale * layer.weight, layer.bias
    offset = layer.running_mean * scale
    shape = (-1, *[1] * (inputs.low.ndim - 2))
    scale, shift, size = (
        each.reshape(shape) for each in (scale, bias - offset, bias.abs() + offset.abs())
    )
    return scaled(inputs, scale, shift, size, unit)


def _weighted(layer: nn.Conv1d | nn.Conv2d | nn.Linear, inputs: Interval, unit: float) -> Interval:
    """Convolution or a linear layer: `W m + b` is the middle, `|W| r` the radius."""
    middle, radius = _halves(inputs)
    weights, bias = layer.weight, layer.bias
    apply = functional.linear if isinstance(layer, nn.Linear) else layer._conv_forward
    center, spread = apply(middle, weights, bias), apply(radius, weights.abs(), None)
    shape = (-1, *[1] * (weights.ndim - 2))
    norms = weights.abs().flatten(1).sum(dim=1)
    size = torch.zeros_like(norms) if bias is None else bias.abs()
    slack = _slack(inputs, norms.reshape(shape), size.reshape(shape), weights[0].numel(), unit)
    return _around(center, spread + slack)


def _halves(inputs: Interval) -> tuple[Tensor, Tensor]:
    return (inputs.low + inputs.high) / 2, (inputs.high - inputs.low) / 2


def _around(center: Tensor, spread: Tensor) -> Interval:
    return Interval(center - spread, center + spread)


def _slack(inputs: Interval, norms: Tensor, size: Tensor, terms: int, unit: float) -> Tensor:
    """What rounding may add to an output with weights of this 1-norm, in the layer and in here.

    A sum of n products, in any order and with or without fused operations, is off by at most
    `n u / (1 - n u)` times the sum of the products' sizes (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 3.1). With `S = norm * max |x| + size`, that is `(n + 1) u S` each
    for the layer's own sum, for the middle and for the radius; rounding the middle, the radius, their
    sum and the norm adds less than `(n + 9) u S`. Eight times `(n + 4) u S` is more than all of it, for
    any network in double precision. The least normal number covers underflow.
    """
    largest = torch.maximum(inputs.low.abs(), inputs.high.abs()).flatten(1).amax(dim=1)
    largest = largest.reshape(-1, *[1] * (inputs.low.ndim - 1))
    tiny = torch.finfo(largest.dtype).tiny
    return 8 * (terms + 4) * unit * (norms * largest + size) + tiny
