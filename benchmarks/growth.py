"""How cost grows with masks, classes and image size. `python -m benchmarks.growth`

With `--weights FILE --data PHOTOS` of a real classifier, for its last table.

Certification runs every pair of masks, so its cost per pass should not depend on how many masks or
classes there are. Inference stops as soon as all classes are decided, so it takes more passes for 80
classes than for one: the last table tells how many more, with the weights of a real classifier.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from benchmarks.core import row
from benchmarks.machine import machine
from benchmarks.model import CLASSES, photos, plain_model, told
from patchdemux import Classifier, DoubleMasking, PatchDemux, PatchThreat

SIZE = 224
BATCH = 32


class SomeClasses(nn.Module):
    """A classifier with some of its classes only."""

    def __init__(self, model: nn.Module, classes: Sequence[int]) -> None:
        super().__init__()
        self.model, self.classes = model, list(classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)[:, self.classes]
        return logits


def defended(model: nn.Module, size: int = SIZE, masks: int = 6) -> PatchDemux:
    threat = PatchThreat.from_area(0.02, size)
    return PatchDemux(Classifier(model), threat, DoubleMasking(masks), batch_size=BATCH)


def certification(demux: PatchDemux, image: Tensor, repeats: int = 3) -> tuple[int, float]:
    """Passes and median seconds for one image."""
    size = (image.shape[-2], image.shape[-1])
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        demux.bounds(image[None])
        times.append(time.perf_counter() - started)
    return demux.defense.views(size, demux.threat) or 0, statistics.median(times)


def inference(demux: PatchDemux, images: Tensor) -> tuple[float, float]:
    """Mean passes and mean seconds per image, one image at a time."""
    started = time.perf_counter()
    decisions = [demux.decide(image[None]) for image in images]
    seconds = (time.perf_counter() - started) / len(images)
    return statistics.mean(int(d.views[0]) for d in decisions if d.views is not None), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=20, help="photos for inference")
    options = parser.parse_args()
    image = torch.rand(3, SIZE, SIZE)
    model = plain_model(options.weights)
    defended(model).bounds(image[None])  # warms up

    print(machine("EfficientNet-Lite0", told(options.weights, options.data)))
    print(f"Certification of one image, batches of {BATCH}, medians.\n")
    print(row("", "passes", "s per image", "ms per pass"))
    print(row(*["---"] * 4))

    def line(what: str, demux: PatchDemux, of: Tensor) -> None:
        passes, seconds = certification(demux, of)
        print(row(what, str(passes), f"{seconds:.2f}", f"{1e3 * seconds / passes:.2f}"), flush=True)

    for masks in range(2, 9):
        line(f"{masks} x {masks} masks", defended(model, masks=masks), image)
    for classes in (1, 10, 80, 1000):
        many = timm.create_model("efficientnet_lite0", num_classes=classes).eval()
        line(f"{classes} classes", defended(many), image)
    for size in (96, 160, 224, 320, 448):
        line(f"{size} x {size} pixels", defended(model, size), torch.rand(3, size, size))

    images = photos(options.images, SIZE, options.data)
    print(f"\nInference at 0.5, mean over {len(images)} photos, one at a time.\n")
    print(row("classes", "passes", "s per image", "ratio"))
    print(row(*["---"] * 4))
    some = range(0, CLASSES, CLASSES // 8)
    alone = [inference(defended(SomeClasses(model, [c])), images) for c in some]
    passes, seconds = (statistics.mean(numbers) for numbers in zip(*alone, strict=True))
    print(row(f"1 (mean of {len(some)})", f"{passes:.1f}", f"{seconds:.3f}", "1.00 x"))
    for classes in (10, CLASSES):
        passes, took = inference(defended(SomeClasses(model, range(classes))), images)
        print(row(str(classes), f"{passes:.1f}", f"{took:.3f}", f"{took / seconds:.2f} x"))


if __name__ == "__main__":
    main()
