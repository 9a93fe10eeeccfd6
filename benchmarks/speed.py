"""Against the published procedure: certification, inference, cache and memory, same answers.

`python -m benchmarks.speed --data PHOTOS [--weights FILE]`: EfficientNet-Lite0 with 80 classes, with
the weights that ship with the package unless others are given: how many second rounds inference needs
depends on them. The published procedure runs in processes of its own, once as a plain user would run
it and once with the allocator tuned. `--work` takes a part only.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks.machine import machine
from benchmarks.model import CLASSES, photos, plain_model, told
from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.data import TensorSet
from patchdemux.runs import evaluate
from patchdemux.runtimes import fastest, make_runtime

SIZE = 224
LARGE = 448
THRESHOLD = 0.5
SHARED = "model.blocks.1"
"""The layer up to which views share features."""
REPEATS = 3
WORKS = ("certify", "infer", "storage")


def published(work: str, options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Of the published procedure: seconds of each image or repeat, passes, labels."""
    command = [sys.executable, "-m", "benchmarks.published", work, *more]
    command += ["--repeats", str(options.published_repeats)]
    command += ["--images", str(1 if work == "certify" else options.images)]
    command += ["--weights", str(options.weights)] if options.weights else []
    command += ["--data", str(options.data)] if options.data else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def certify_seconds(demux: PatchDemux, images: Tensor) -> list[float]:
    """Seconds to certify one image, once the batch size is found."""
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        demux.bounds(images[:1])
        times.append(time.perf_counter() - started)
    return times[1:]


def infer_seconds(
    demux: PatchDemux, images: Tensor, truth: list[list[bool]]
) -> tuple[list[float], float, int]:
    """Median seconds of each image, alone; mean passes per image; labels that are not the truth."""
    demux.decide(images[:1], THRESHOLD)
    times, passes, wrong = [], [], 0
    for image, labels in zip(images, truth, strict=True):
        taken = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            decision = demux.decide(image[None], THRESHOLD)
            taken.append(time.perf_counter() - started)
        times.append(statistics.median(taken))
        assert decision.views is not None
        passes.append(int(decision.views[0]))
        wrong += int((decision.labels[0] != np.array(labels)).sum())
    return times, statistics.mean(passes), wrong


def compare(
    work: str, options: argparse.Namespace, images: Tensor, runtimes: dict[str, Classifier]
) -> None:
    """Lines of the table for one work; certification tells the median, inference the mean of images."""
    plain, tuned = published(work, options), published(work, options, "--tuned")
    passes = statistics.mean(plain["passes"])
    middle = statistics.median if work == "certify" else statistics.mean
    for name, classifier in runtimes.items():
        demux = PatchDemux(classifier, PatchThreat.from_area(0.02, SIZE))
        if work == "certify":
            what, ours, views = "certification", certify_seconds(demux, images), 667.0
            same = ""
        else:
            what = f"inference at {THRESHOLD}, batch size 1"
            ours, views, wrong = infer_seconds(demux, images, plain["labels"])
            same = f"{wrong} of {len(images) * CLASSES}"
        times = [middle(plain["seconds"]), middle(tuned["seconds"]), middle(ours)]
        print(
            row(
                f"{what}, {name}",
                f"{passes:.0f} / {views:.0f}",
                *(f"{seconds:.3g} s" for seconds in times),
                f"{times[0] / times[2]:.1f} x",
                f"{times[1] / times[2]:.1f} x",
                same,
            ),
            flush=True,
        )


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
    before = peak_resident()
    PatchDemux(model, PatchThreat.from_area(0.02, LARGE)).bounds(image)
    return float(peak_resident() - before)


def peak_resident() -> int:
    """Bytes of memory that this process ever held at once, on Linux.

    What `getrusage` tells would be no less than what the parent held when it began this process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise RuntimeError("this system does not tell the memory of a process")


def measured_apart(function: str) -> Any:
    """What a function of this module returns, in a process of its own."""
    code = f"import json; from benchmarks import speed; print(json.dumps(speed.{function}()))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="of EfficientNet-Lite0; else the shipped ones")
    parser.add_argument("--data", type=Path, help="zip or folder of photos; else random images")
    parser.add_argument("--images", type=int, default=4, help="photos for inference")
    parser.add_argument("--published-repeats", type=int, default=REPEATS, help="to certify")
    parser.add_argument("--work", choices=WORKS, nargs="*", default=WORKS)
    options = parser.parse_args()
    images = photos(options.images, SIZE, options.data)
    classifier = Classifier(plain_model(options.weights), image_size=SIZE)
    print(machine("EfficientNet-Lite0", told(options.weights, options.data)))
    if timed := [work for work in WORKS[:2] if work in options.work]:
        choices = [fastest(classifier, images[0], precision=name) for name in ("float32", None)]
        print(f"The fastest is {choices[-1]}.\n")
        sharing = make_runtime(classifier, f"shared:{SHARED}")
        runtimes = {"torch float32": classifier, f"shared:{SHARED} float32": sharing}
        runtimes |= {f"{c.runtime} {c.precision}": c.classifier for c in choices}
        head = ["published", "allocator tuned", "patchdemux", "ratio", "to tuned", "other labels"]
        print(row("work, per image", "passes", *head))
        print(row(*["---"] * 8))
        for work in timed:
            compare(work, options, images, runtimes)
        print()
    if "storage" in options.work:
        demux = PatchDemux(classifier, PatchThreat.from_area(0.02, SIZE))
        stored, table = cache_bytes(demux, images), 36 * 36 * CLASSES * 8
        print(
            f"Cache: {stored / 1e3:.1f} kB per image ({len(images)} images) against "
            f"{table / 1e3:.0f} kB: {table / stored:.0f} x."
        )
        peak = measured_apart("peak_memory")
        print(f"Peak memory above the model's at {LARGE} x {LARGE}: {peak / 1e9:.2f} GB.")


if __name__ == "__main__":
    main()
