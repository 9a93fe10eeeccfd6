"""Against the published procedure: certification, inference, cache and memory, same answers.

`python -m benchmarks.speed --weights FILE --data PHOTOS` with the weights of an EfficientNet-Lite0 with
80 classes: how many second rounds inference needs depends on them. The published procedure runs in
processes of its own, once as a plain user would run it and once with the allocator tuned.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.core import row
from benchmarks.model import CLASSES, photos, plain_model
from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.data import TensorSet
from patchdemux.runs import evaluate
from patchdemux.runtimes import fastest

SIZE = 224
LARGE = 448
THRESHOLD = 0.5


def published(work: str, options: argparse.Namespace, *more: str) -> float:
    """Seconds per image of the published procedure, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.published", work, *more]
    command += ["--images", str(1 if work == "certify" else options.images)]
    command += ["--weights", str(options.weights)] if options.weights else []
    command += ["--data", str(options.data)] if options.data else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    seconds: float = json.loads(done.stdout)["seconds_per_image"]
    return seconds


def certify_seconds(demux: PatchDemux, images: Tensor, repeats: int = 3) -> float:
    """Median seconds to certify one image, once the batch size is found."""
    times = []
    for i in range(repeats + 1):
        started = time.perf_counter()
        demux.bounds(images[i % len(images), None])
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def infer_seconds(demux: PatchDemux, images: Tensor) -> tuple[float, float]:
    """Mean seconds and mean passes per image, one image at a time."""
    demux.decide(images[:1], THRESHOLD)
    started = time.perf_counter()
    decisions = [demux.decide(image[None], THRESHOLD) for image in images]
    seconds = (time.perf_counter() - started) / len(images)
    return seconds, float(np.mean([d.views for d in decisions if d.views is not None]))


def cache_bytes(demux: PatchDemux, images: Tensor) -> float:
    """Bytes on disk per image of a run."""
    targets = torch.zeros(len(images), CLASSES, dtype=torch.int64)
    names = [f"class {c}" for c in range(CLASSES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        evaluate(demux, TensorSet(images, targets, names, "photos"), path, batch_size=32)
        return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / len(images)


def peak_memory() -> float:
    """Bytes above the model's own, for one image of 448 x 448."""
    model = plain_model()
    image = torch.rand(1, 3, LARGE, LARGE)
    with torch.inference_mode():
        model(image)
    demux = PatchDemux(model, PatchThreat.from_area(0.02, LARGE))
    seen = [resident()]
    demux.engine.progress = lambda done, total: seen.append(resident())
    demux.bounds(image)
    return float(max(seen) - seen[0])


def resident() -> int:
    """Bytes of memory this process holds; freed memory stays, so a look after a batch is enough."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measured_apart(function: str) -> Any:
    """What a function of this module returns, in a process of its own."""
    code = f"import json; from benchmarks import speed; print(json.dumps(speed.{function}()))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=4, help="photos for inference")
    options = parser.parse_args()
    images = photos(options.images, SIZE, options.data)
    threat = PatchThreat.from_area(0.02, SIZE)
    plain = {work: published(work, options) for work in ("certify", "infer")}
    tuned = {work: published(work, options, "--tuned") for work in ("certify", "infer")}
    print(row("work, per image", "published", "allocator tuned", "patchdemux", "ratio", "to tuned"))
    print(row(*["---"] * 6))

    def compare(what: str, work: str, seconds: float) -> None:
        ratios = (f"{base[work] / seconds:.1f} x" for base in (plain, tuned))
        print(
            row(what, f"{plain[work]:.2f} s", f"{tuned[work]:.2f} s", f"{seconds:.3f} s", *ratios)
        )

    classifier = Classifier(plain_model(options.weights), image_size=SIZE)
    choice = fastest(classifier, images[0], precision=None)
    for name, given in (("torch float32", classifier), (str(choice), choice.classifier)):
        demux = PatchDemux(given, threat)
        compare(f"certification, {name}", "certify", certify_seconds(demux, images))
        seconds, passes = infer_seconds(demux, images)
        compare(f"inference at {THRESHOLD}, {passes:.0f} passes, {name}", "infer", seconds)
    stored, table = cache_bytes(PatchDemux(classifier, threat), images), 36 * 36 * CLASSES * 8
    print(
        f"\ncache: {stored / 1e3:.1f} kB per image against {table / 1e3:.0f} kB: {table / stored:.0f} x"
    )
    print(f"peak memory above the model's at {LARGE}: {measured_apart('peak_memory') / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
