"""The published procedure, written literally from the paper, as a plain PyTorch user would run it.

`python -m benchmarks.published certify` runs all 1,296 ordered pairs of 36 masks, one pair at a
time over a batch of images, and keeps the probabilities as float64. `... infer` runs the 36 single
masks, and for every mask that disagrees with the majority in some class that is not resolved yet, all
36 second masks. It is a process of its own: no allocator tuning unless asked for, no channels-last, no
unions. Prints one line of JSON: seconds of every image, or of every repeat to certify; passes; labels.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.model import photos, plain_model
from patchdemux.allocator import keep_freed_memory
from patchdemux.masks import MaskSet
from patchdemux.threat import PatchThreat


def keeps(size: int, masks: int) -> list[Tensor]:
    """One image of ones and zeros per mask; zero where the mask hides."""
    covering = MaskSet.covering(size, PatchThreat.from_area(0.02, size), masks)
    return [torch.from_numpy(~hidden).float() for hidden in covering.dense()]


def certification_table(model: nn.Module, images: Tensor, masks: list[Tensor]) -> np.ndarray:
    """Probabilities (image, mask, mask, class) of every ordered pair of masks."""
    rows = []
    for first in masks:
        row = [torch.sigmoid(model(images * first * second)).double().numpy() for second in masks]
        rows.append(np.stack(row, axis=1))
    return np.stack(rows, axis=1)


def inference(
    model: nn.Module, image: Tensor, masks: list[Tensor], threshold: float
) -> tuple[np.ndarray, int]:
    """Labels of one image by the two-round algorithm for all classes, and the passes it took."""
    first = np.stack([predict(model, image * mask, threshold) for mask in masks])
    passes = len(masks)
    labels = first.sum(axis=0) * 2 > len(masks)  # the majority, ties to 0
    resolved = (first == labels).all(axis=0)
    for mask, answer in zip(masks, first, strict=True):
        disagreeing = ~resolved & (answer != labels)
        if not disagreeing.any():
            continue
        second = np.stack([predict(model, image * mask * other, threshold) for other in masks])
        passes += len(masks)
        wins = disagreeing & (second == answer).all(axis=0)
        labels = np.where(wins, answer, labels)
        resolved |= wins
    return labels, passes


def predict(model: nn.Module, image: Tensor, threshold: float) -> np.ndarray:
    """Labels of one view."""
    labels: np.ndarray = (torch.sigmoid(model(image[None]))[0] > threshold).numpy()
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=["certify", "infer"])
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1, help="of certification")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--masks", type=int, default=6, help="rows and columns of masks")
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--weights", type=Path, help="of EfficientNet-Lite0; else the shipped ones")
    parser.add_argument("--data", type=Path, help="zip or folder of photos; else random images")
    parser.add_argument("--tuned", action="store_true", help="keep freed memory, as the package")
    options = parser.parse_args()
    if options.tuned:
        keep_freed_memory()
    model = plain_model(options.weights)
    images = photos(options.images, options.size, options.data)
    masks = keeps(options.size, options.masks)
    seconds, passes, labels = [], [], []
    with torch.inference_mode():
        model(images[:1])
        if options.work == "certify":
            for _ in range(options.repeats):
                started = time.perf_counter()
                certification_table(model, images, masks)
                seconds.append((time.perf_counter() - started) / len(images))
                passes.append(len(masks) ** 2)
        else:
            for image in images:
                started = time.perf_counter()
                answer, count = inference(model, image, masks, options.threshold)
                seconds.append(time.perf_counter() - started)
                passes.append(count)
                labels.append(answer.tolist())
    print(json.dumps({"seconds": seconds, "passes": passes, "labels": labels}))


if __name__ == "__main__":
    main()
