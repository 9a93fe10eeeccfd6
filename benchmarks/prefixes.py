"""Shared features: what the runtime `shared:LAYER` brings, layer by layer.

`python -m benchmarks.prefixes --model resnet50 --size 448 --layers layer1 layer2`: certification of one
image by a timm model with random weights, with 6 x 6 masks against a patch of 2%. Of every layer: its
share of a pass, how much faster certification is, and how far scores are from those of whole views,
beside the margin of ordinary batches. `--firsts 4` times the pairs of four of the 36 masks only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.core import row
from benchmarks.machine import machine
from patchdemux import Classifier, Engine, MaskSet, PatchDemux, PatchThreat
from patchdemux.margin import measure_margin
from patchdemux.runtimes import make_runtime
from patchdemux.split import split

MASKS = 6


def random_model(name: str, size: int) -> nn.Module:
    """In eval mode, with random weights, and statistics that fit them; no residual branch is zero."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=80)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.momentum = None
    model.train().to(memory_format=torch.channels_last)
    with torch.no_grad():
        model(torch.rand(8, 3, size, size))
    return model.eval()


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time, after one run to warm up."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


@torch.inference_mode()
def share(classifier: Classifier, layer: str, image: Tensor) -> float:
    """Of the arithmetic of a pass, what comes up to a layer."""
    counts: list[float] = []
    for work in (split(classifier, layer).front, classifier):
        with FlopCounterMode(display=False) as counter:
            work(image)
        counts.append(counter.get_total_flops())
    return counts[0] / counts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="efficientnet_lite0", help="of timm")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--layers", nargs="+", default=["blocks.0", "blocks.1", "blocks.2.0"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--firsts", type=int, default=MASKS**2, help="masks whose pairs are timed")
    options = parser.parse_args()
    size, batch = options.size, options.batch
    classifier = Classifier(random_model(options.model, size))
    threat = PatchThreat.from_area(0.02, size)
    masks = MaskSet.covering(size, threat, MASKS)
    firsts = np.linspace(0, len(masks) - 1, options.firsts).astype(int)
    pairs = masks.unions()[np.isin(masks.unions()[:, 0], firsts)]
    image = torch.rand(1, 3, size, size)

    def scores(runtime: str) -> tuple[np.ndarray, float]:
        engine = Engine(make_runtime(classifier, runtime), batch_size=batch)
        found = engine.masked_scores(image, masks.dense(), pairs)
        work = seconds(lambda: engine.masked_scores(image, masks.dense(), pairs), options.repeats)
        return found, work

    what = f"{options.model} at {size} x {size}, torch in float32, random weights"
    print(machine(what, f"{len(pairs)} views, batches of {batch}"))
    margin = measure_margin(PatchDemux(classifier, threat, batch_size=batch), image)
    print(f"The margin of ordinary batches is {margin.value:.2g}.\n")
    print(row("shared up to", "of a pass", "ms per view", "ratio", "difference of a score"))
    print(row(*["---"] * 5))
    ordinary, base = scores("torch")
    print(row("nothing", "0%", f"{1e3 * base / len(pairs):.2f}", "1.00 x", "0"), flush=True)
    for layer in options.layers:
        found, took = scores(f"shared:{layer}")
        print(
            row(
                layer,
                f"{share(classifier, layer, image):.0%}",
                f"{1e3 * took / len(pairs):.2f}",
                f"{base / took:.2f} x",
                f"{np.abs(found - ordinary).max():.2g}",
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
