"""How much time feature masking saves: the same masks on features, against those on pixels.

`python -m benchmarks.features` takes EfficientNet-Lite0 on a photo-sized input, with random weights.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from benchmarks.core import row
from benchmarks.model import photos, plain_model
from patchdemux import DoubleMasking, PatchDemux, PatchThreat
from patchdemux.allocator import keep_freed_memory
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.receptive_field import measured

LAYERS = ("blocks.0", "blocks.1", "blocks.2")
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--masks", type=int, default=6, help="rows and columns of masks")
    parser.add_argument("--size", type=int, default=224, help="height and width of the image")
    parser.add_argument("--patch", type=float, default=0.02, help="the patch's share of the image")
    parser.add_argument("--batch", type=int, default=16, help="views per call of the model")
    arguments = parser.parse_args()
    keep_freed_memory()
    threat = PatchThreat.from_area(arguments.patch, arguments.size)
    image = photos(1, arguments.size)
    model = plain_model()
    pixels = PatchDemux(model, threat, DoubleMasking(arguments.masks), batch_size=arguments.batch)
    print(row("cut after", "a cell sees", "map", "mask, in pixels", "to measure, s", "time"))
    print(row(*["---"] * 6))
    mask = pixels.defense.region_boxes(arguments.size, threat)
    assert mask is not None
    print(row("nothing", "", "", f"{mask[0, 2]}", "", "1"))
    for layer in LAYERS:
        defense = FeatureMasking(f"model.{layer}", arguments.masks)
        features = PatchDemux(model, threat, defense, batch_size=arguments.batch)
        started = time.perf_counter()
        _, field = measured(features.classifier, defense.layer, arguments.size)
        spent = time.perf_counter() - started
        cells = defense.of_features.mask_set(field.grid, defense.feature_threat(field, threat))
        ratio = median(seconds(features, image) / seconds(pixels, image) for _ in range(ROUNDS))
        height = int(cells.boxes[0, 2]) * arguments.size // field.grid[0]
        print(
            row(
                layer,
                f"{field.size[0]}",
                f"{field.grid[0]}",
                f"{height}",
                f"{spent:.1f}",
                f"{ratio:.2f}",
            )
        )


def seconds(demux: PatchDemux, image: torch.Tensor) -> float:
    """The time of the bounds of one image."""
    started = time.perf_counter()
    demux.bounds(image)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
