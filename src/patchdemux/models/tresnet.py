"""TResNet from a checkpoint: timm's model, which computes what the published one does."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from patchdemux.models.loading import fit, layers, shape_of


def tresnet(state: Mapping[str, Tensor], source: str) -> nn.Module:
    """TResNet with the tensors of a checkpoint, published or timm's, which also tell its sizes."""
    try:
        from timm.models.tresnet import TResNet, checkpoint_filter_fn
    except ImportError as error:
        raise ImportError("TResNet needs timm: pip install 'patchdemux[models]'") from error
    converted: dict[str, Tensor] = checkpoint_filter_fn(dict(state), None)
    model: nn.Module = TResNet(
        layers=[layers(state, f"body.layer{stage}") for stage in range(1, 5)],
        width_factor=shape_of("body.conv1.conv.weight", converted, source, 4)[0] / 64,
        num_classes=shape_of("head.fc.bias", converted, source, 1)[0],
    )
    for name, tensor in model.state_dict().items():
        if name.endswith("num_batches_tracked"):  # counters that the published layers do not have
            converted.setdefault(name, tensor)
    fit(model, converted, source)
    return model
