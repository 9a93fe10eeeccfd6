"""Where a patch can hurt: heat maps over the places of the patch."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from matplotlib.image import imsave
from PIL.Image import Resampling, fromarray
from torch import Tensor

from patchdemux.bounds import ScoreBounds
from patchdemux.masks import MaskSet

Image = Float[np.ndarray, "height width channel"]
HIDE, FAKE = (0.86, 0.16, 0.16), (0.93, 0.53, 0.05)
LARGEST = 336  # pixels of a picture's longer side: twice what the page shows


def place_map(
    values: Float[np.ndarray, " region"], masks: MaskSet, combine: Callable[..., np.ndarray]
) -> Float[np.ndarray, "height width"]:
    """A value per place of the patch, drawn at the pixel under the patch's middle.

    A patch that lies inside several masks is subject to the bounds of all of them: `combine` is
    `np.maximum` for lower bounds and `np.minimum` for upper bounds, so that the best one counts.
    Pixels too near the border to be the middle of a patch take the value of the nearest place.
    """
    height, width = masks.image_size
    patch = masks.threat
    worst = -np.inf if combine is np.maximum else np.inf
    places = np.full((height - patch.height + 1, width - patch.width + 1), worst)
    for value, (top, left, tall, wide) in zip(values, masks.boxes, strict=True):
        tops, lefts = max(tall - patch.height + 1, 0), max(wide - patch.width + 1, 0)
        own = places[top : top + tops, left : left + lefts]
        combine(own, value, out=own)
    above, before = (patch.height - 1) // 2, (patch.width - 1) // 2
    below, after = patch.height - 1 - above, patch.width - 1 - before
    return np.pad(places, ((above, below), (before, after)), mode="edge")


def danger_map(
    bounds: ScoreBounds, masks: MaskSet, image: int, label: int, true: bool, threshold: float
) -> tuple[Image, float]:
    """An overlay (RGBA) for one label of one image, and the share of patch places in danger.

    For a true label, the places from which a patch may hide it; for a false one, the places from
    which a patch may invent it. The stronger the color, the further beyond the threshold the
    defended probability may be pushed.
    """
    if true:
        scores = place_map(bounds.lower[image, :, label], masks, np.maximum)
        danger, color = scores <= threshold, HIDE
        push = 1 - probability(scores)
    else:
        scores = place_map(bounds.upper[image, :, label], masks, np.minimum)
        danger, color = scores > threshold, FAKE
        push = probability(scores)
    overlay = np.zeros((*danger.shape, 4))
    overlay[..., :3] = color
    overlay[..., 3] = np.where(danger, 0.25 + 0.5 * push, 0)
    return overlay, float(danger.mean())


def probability(logits: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The logistic function, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))


def as_data_uri(image: Image) -> str:
    """An image in [0, 1] as a PNG inside a data URI."""
    buffer = io.BytesIO()
    imsave(buffer, np.ascontiguousarray(image.clip(0, 1)), format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def as_picture(image: Float[Tensor, "channel height width"]) -> str:
    """A data URI of an image in [0, 1]: a small one exactly, a photo reduced to what a page shows.

    What is neither gray nor RGB is shown as the mean of its channels.
    """
    pixels = image.float().cpu() if len(image) in (1, 3) else image.float().cpu().mean(0, True)
    colors = pixels.expand(3, -1, -1).permute(1, 2, 0).numpy()
    height, width = colors.shape[:2]
    if max(height, width) <= LARGEST // 2:
        return as_data_uri(colors)
    share = min(1.0, LARGEST / max(height, width))
    photo = fromarray((255 * colors.clip(0, 1)).round().astype(np.uint8))
    size = max(1, round(share * width)), max(1, round(share * height))
    buffer = io.BytesIO()
    photo.resize(size, Resampling.BILINEAR).save(buffer, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
