"""Shared prefixes: early features of doubly masked images, stitched from those of single masks.

As long as a network is local, a mask changes its features only in a rectangle, the mask's zone. Where
the zones of two masks do not meet, the features under both masks are those under the one, with the
other's zone pasted in: 37 passes of the network's beginning serve 667 views. This measures what that
brings: `python -m benchmarks.prefixes --device cuda --model resnet50 --size 224 --precision bfloat16`.
Weights are random, and scores are compared with those of ordinary passes. On a slow machine
`--views 60` times so many views instead of all, and scales their time up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import timm
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.core import row
from benchmarks.machine import machine
from patchdemux import MaskSet, PatchThreat
from patchdemux.allocator import keep_freed_memory

Features = tuple[Tensor, ...]
Piece = Callable[[Features], Features]
Boxes = Int[np.ndarray, "mask 4"]
"""Every mask's zone among the features: top, left, bottom, right."""


@dataclass
class Network:
    """Pieces that are local, one after the other, with their names, and the rest of the network."""

    names: list[str]
    pieces: list[Piece]
    rest: Callable[[Features], Tensor]

    def begin(self, images: Features, level: int) -> Features:
        """The features behind piece `level`."""
        return reduce(lambda features, piece: piece(features), self.pieces[: level + 1], images)

    def logits(self, features: Features, level: int) -> Tensor:
        """From features behind piece `level` (-1: from the images)."""
        for piece in self.pieces[level + 1 :]:
            features = piece(features)
        return self.rest(features)


def whole(module: nn.Module, features: Features) -> Features:
    """One module as a piece."""
    return (module(features[0]),)


def split(model: nn.Module) -> Network:
    """A ResNet behind its stem and each block; a TResNet before the first squeeze-excitation."""
    modules = dict(model.named_modules())
    if "body" in modules:
        body = [*modules["body"].children()]
        first, *blocks = body[2]

        def begin(features: Features) -> Features:
            """All of the first block up to its squeeze-excitation."""
            return features[0], first.conv2(first.conv1(features[0]))

        def end(features: Features) -> Tensor:
            images = first.act(first.se(features[1]) + features[0])
            logits: Tensor = modules["head"](nn.Sequential(*blocks, *body[3:])(images))
            return logits

        stem = nn.Sequential(*body[:2])
        return Network(["stem", "before the first mean"], [partial(whole, stem), begin], end)
    stem = nn.Sequential(*(modules[name] for name in ("conv1", "bn1", "act1", "maxpool")))
    named = {name: module for name, module in modules.items() if name.count(".") == 1}
    blocks = {name: named[name] for name in named if name.startswith("layer")}
    head = nn.Sequential(modules["global_pool"], modules["fc"])
    pieces = [partial(whole, module) for module in (stem, *blocks.values())]
    return Network(["stem", *blocks], list(pieces), lambda features: head(features[0]))


def random_model(name: str, size: int, device: torch.device) -> nn.Module:
    """In eval mode, with random weights, and statistics that fit them; no residual branch is zero."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=80)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.momentum = None
    model.train().to(device).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model(torch.rand(8, 3, size, size, device=device))
    return model.eval()


@torch.inference_mode()
def zones(network: Network, hidden: Tensor) -> list[Boxes]:
    """Zones of all masks behind every piece, exact: where NaN in a mask's pixels makes NaN.

    Convolutions are plain matrix products here; faster algorithms would spread NaN too far.
    """
    boxes: list[list[tuple[int, ...]]] = [[] for _ in network.pieces]
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        for mask in hidden:
            image = torch.zeros(1, 3, *mask.shape, device=mask.device)
            features: Features = (image.masked_fill(mask, float("nan")),)
            for level, piece in enumerate(network.pieces):
                features = piece(features)
                changed = torch.cat(features, 1).isnan().any(1)[0]
                rows, columns = (changed.any(axis).nonzero()[:, 0] for axis in (1, 0))
                box = tuple(int(x) for x in (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1))
                if not changed[box[0] : box[2], box[1] : box[3]].all():
                    raise AssertionError("a zone is not a rectangle")
                boxes[level].append(box)
    return [np.array([*level, (0, 0, 0, 0)]) for level in boxes]  # the last mask hides nothing


def shared_cells(boxes: Boxes, one: Tensor, other: Tensor) -> Int[np.ndarray, " pair"]:
    """Cells in the zones of both masks of each pair."""
    low = np.maximum(boxes[one, :2], boxes[other, :2])
    high = np.minimum(boxes[one, 2:], boxes[other, 2:])
    cells: Int[np.ndarray, " pair"] = (high - low).clip(0).prod(axis=1)
    return cells


class Certification:
    """The logits of all 667 views of an image: pairs of masks, single masks, and the image."""

    def __init__(self, network: Network, size: int, device: torch.device, batch: int) -> None:
        masks = MaskSet.covering(size, PatchThreat.from_area(0.02, size), (6, 6))
        hidden = torch.from_numpy(masks.dense()).to(device)
        self.image = torch.rand(1, 3, size, size, device=device)
        self.visible = torch.cat([~hidden, torch.ones_like(hidden[:1])])[:, None].float()
        self.jobs = torch.from_numpy(np.vstack([masks.unions(), [[len(masks)] * 2]]))
        self.network, self.batch, self.zones = network, batch, zones(network, hidden)
        self.proper = self.jobs[:, 0] != self.jobs[:, 1]
        self.shared = [shared_cells(boxes, *self.jobs.T) for boxes in self.zones]
        self.apart = [torch.from_numpy(cells == 0) | ~self.proper for cells in self.shared]

    def views(self, jobs: Tensor) -> Tensor:
        one, other = jobs.to(self.image.device).T
        images = self.image * (self.visible[one] * self.visible[other])
        return images.contiguous(memory_format=torch.channels_last)

    def stitched(self, store: Features, boxes: Boxes, jobs: Tensor) -> Features:
        """Features under the second mask of each job, and within the zone of the first under that."""
        firsts, counts = np.unique(jobs[:, 0].numpy(), return_counts=True)  # jobs are sorted
        seconds = jobs[:, 1].to(self.image.device)
        result = []
        for features in store:
            # Images first and channels last in memory: whole rows are copied.
            new = features.permute(0, 2, 3, 1)[seconds].permute(0, 3, 1, 2)
            ends = np.cumsum(counts)
            for first, start, end in zip(firsts, ends - counts, ends, strict=True):
                top, left, bottom, right = boxes[first]
                zone = np.s_[..., top:bottom, left:right]
                new[start:end][zone] = features[first][zone]
            result.append(new)
        return tuple(result)

    def deepest(self, levels: list[int]) -> Tensor:
        """For each job the last of these pieces behind which its zones do not meet; -1 if none."""
        deepest = torch.full((len(self.jobs),), -1)
        for level in sorted(levels):
            deepest[self.apart[level]] = level
        return deepest

    def stores(self, levels: list[int]) -> dict[int, Features]:
        """Features of the image under every single mask, and under none, behind these pieces."""
        stores: dict[int, Features] = {}
        if levels:
            features: Features = (self.views(torch.arange(len(self.visible)).repeat(2, 1).T),)
            for level in range(max(levels) + 1):
                features = self.network.pieces[level](features)
                if level in levels:
                    stores[level] = features
        return stores

    def logits(self, stores: dict[int, Features], jobs: Tensor, batch: int) -> Tensor:
        """Each job is stitched behind the last of the stored pieces where its zones do not meet."""
        levels = list(stores)
        deepest = self.deepest(levels)
        result: Tensor | None = None
        for level in [-1, *levels]:
            mine = jobs[deepest[jobs] == level]
            for start in range(0, len(mine), batch):
                some = mine[start : start + batch]
                chosen = self.jobs[some]
                features = (
                    (self.views(chosen),)
                    if level < 0
                    else self.stitched(stores[level], self.zones[level], chosen)
                )
                logits = self.network.logits(features, level).float()
                if result is None:
                    result = logits.new_full((len(self.jobs), logits.shape[1]), float("nan"))
                result[some.to(logits.device)] = logits
        if result is None:
            raise ValueError("no jobs")
        return result

    def saved(self, levels: list[int], shares: list[float]) -> float:
        """The ratio that the arithmetic allows, where pieces up to each take a share of a pass."""
        deepest = self.deepest(levels)
        spared = sum(shares[level] for level in deepest.tolist() if level >= 0)
        begun = len(self.visible) * max(shares[level] for level in levels)
        return float(len(self.jobs) / (len(self.jobs) - spared + begun))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time, after one run to warm up, until the device is done."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def flops(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="a ResNet or TResNet of timm")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--views", type=int, help="so many of the 667 are timed; else all")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        keep_freed_memory()
    network = split(random_model(options.model, options.size, device))
    work = Certification(network, options.size, device, options.batch)
    image = (work.image,)
    total = flops(lambda: network.logits(image, -1))
    depths = range(len(network.names))
    shares = [flops(partial(network.begin, image, level)) / total for level in depths]
    everything = torch.arange(len(work.jobs))
    chosen = everything
    if options.views is not None:  # in their order, on which stitching relies
        chosen = torch.randperm(len(everything))[: options.views].sort().values
    where = torch.cuda.get_device_name() if device.type == "cuda" else "on the CPU"
    what = f"{options.model} at {options.size} x {options.size}, {options.precision}, {where}"
    print(machine(what, f"{len(chosen)} of {len(everything)} views, batches of {options.batch}"))
    head = ["of a pass", "of the pairs", "at best", "s per image", "ratio", "difference"]
    print(row("stitched behind", *head))
    print(row(*["---"] * 7))
    with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16"):
        scale = len(everything) / len(chosen)
        ordinary = work.logits({}, chosen, options.batch)
        other = work.logits({}, chosen, max(1, options.batch // 2 + 1))
        base = scale * seconds(lambda: work.logits({}, chosen, options.batch), options.repeats)
        noise = float((ordinary - other)[chosen].abs().max())
        cells = ["0%", "0%", "1.00 x", f"{base:.2f}", "1.00 x"]
        print(row("nothing", *cells, f"{noise:.2g} (other batches)"), flush=True)
        useful = [level for level in depths if work.apart[level][work.proper].any()]
        for levels in [*([level] for level in useful), useful]:
            pairs = float(work.apart[levels[0]][work.proper].float().mean())
            stores = work.stores(levels)
            took = seconds(partial(work.stores, levels), options.repeats)
            run = partial(work.logits, stores, chosen, options.batch)
            took += scale * seconds(run, options.repeats)
            difference = float((run() - ordinary)[chosen].abs().max())
            name = (
                network.names[levels[0]] if len(levels) == 1 else "the last that each pair allows"
            )
            cells = [f"{shares[levels[-1]]:.0%}", f"{pairs:.0%}"]
            cells += [f"{work.saved(levels, shares):.2f} x", f"{took:.2f}", f"{base / took:.2f} x"]
            print(row(name, *cells, f"{difference:.2g}"), flush=True)


if __name__ == "__main__":
    main()
