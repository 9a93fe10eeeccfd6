"""What is defended: any PyTorch module or callable that gives every image a logit per class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from patchdemux.threat import Size, as_size

Answers = Callable[[Int[np.ndarray, " job"], Tensor], Tensor]
"""From the images that views are of, and the masks that they hide (job, k), to logits."""


class Views(Protocol):
    """Makes masked views: of these images, with all pixels of the masks hidden."""

    def __call__(
        self, visible: Tensor, owners: Int[np.ndarray, " job"], masks: Tensor
    ) -> Tensor: ...


class Classifier(nn.Module):
    """A multi-label classifier with what belongs to it: normalisation, class names, input size.

    Images are float tensors (image, channel, height, width) in [0, 1]; the answer is a logit per
    image and class. Masks are laid over the image in [0, 1], before normalisation.

    Args:
        model: a module or any callable from normalised images to logits.
        class_names: one name per class.
        image_size: height and width that the model wants, if it wants a fixed size.
        mean, std: per-channel normalisation, applied as `(image - mean) / std`.
        visible_channel: whether the model is given one channel more than the image has: 1 where a
            pixel is visible and 0 where it is hidden. The engine adds it; it is never normalised.

    Attributes:
        runtime, precision: what runs the model, and in which numbers; `make_runtime` gives others.
        channels_last: whether the model is handed images in that memory layout, which makes
            convolutions faster; a model that calls `view` on its features wants it off, and gets it.
        own_threads: whether the model is run by threads that are not PyTorch's.
        shares_features: whether views of one image share parts of what is computed.
    """

    mean: Tensor
    std: Tensor
    runtime: str = "torch"
    precision: str = "float32"  # or as the weights are
    own_threads: bool = False
    shares_features: bool = False

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        *,
        class_names: Sequence[str] | None = None,
        image_size: Size | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        visible_channel: bool = False,
    ) -> None:
        super().__init__()
        if not callable(model):
            raise TypeError(f"model must be a torch module or a callable, but got {type(model)}")
        self.model = model
        self.training = isinstance(model, nn.Module) and getattr(model, "training", False)
        self.class_names = None if class_names is None else tuple(class_names)
        self.image_size = None if image_size is None else as_size("image_size", image_size)
        self.normalises = mean is not None or std is not None
        self.visible_channel = visible_channel
        self.channels_last = isinstance(model, nn.Module) and any(
            isinstance(module, nn.Conv2d) for module in model.modules()
        )
        for name, values, default in (("mean", mean, 0.0), ("std", std, 1.0)):
            channels = torch.tensor([default] if values is None else list(values))
            self.register_buffer(name, channels.float()[:, None, None], persistent=False)
        if (self.std <= 0).any():
            raise ValueError(f"std must be positive, but got {list(std or ())}")

    @classmethod
    def of(cls, model: Any) -> Classifier:
        """The model itself if it is a classifier already, else a plain classifier around it."""
        return model if isinstance(model, cls) else cls(model)

    def forward(self, images: Tensor) -> Tensor:
        try:
            logits = self.compute(images)
        except RuntimeError as error:
            if not self.channels_last or "view size is not compatible" not in str(error):
                raise
            self.channels_last = False
            logits = self.compute(images)
        return self.checked(images, logits)

    def of_views(self, views: Views, visible: Tensor) -> Answers:
        """Get ready to answer masked views of some images.

        Args:
            views: makes them.
            visible: (mask, height, width), 1 where a mask leaves the pixel visible, else 0.
        """
        return lambda owners, masks: self(views(visible, owners, masks))

    def compute(self, images: Tensor) -> Any:
        """What the model answers, unchecked; it is handed numbers of the type of its weights."""
        if self.normalises:
            pixels = images[:, :-1] if self.visible_channel else images
            normal = (pixels - self.mean.to(images)) / self.std.to(images)
            images = torch.cat([normal, images[:, -1:]], dim=1) if self.visible_channel else normal
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        weights = (weight for weight in self.parameters() if weight.is_floating_point())
        weight = next(weights, None)
        return self.model(images if weight is None else images.to(weight.dtype))

    def checked(self, images: Tensor, logits: Any) -> Tensor:
        """The logits, if they are what a classifier must answer."""
        if (
            not isinstance(logits, Tensor)
            or logits.ndim != 2
            or len(logits) != len(images)
            or not logits.shape[1]
        ):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"the model must return logits (image, class) for {len(images)} images, "
                f"but returned {got}"
            )
        if self.class_names is not None and logits.shape[1] != len(self.class_names):
            raise ValueError(
                f"the model returned {logits.shape[1]} classes, but there are "
                f"{len(self.class_names)} class names"
            )
        return logits
