"""What a run costs beside its forward passes: checking, reading, resizing, hashing and storing.

`python -m benchmarks.evaluation [FOLDER]`: real photos from a folder of JPEGs, or generated ones.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
from PIL import Image

from benchmarks.core import row
from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.data import folder, limit
from patchdemux.engine import Engine
from patchdemux.runs import evaluate

SIZE = 224
PHOTOS = 16


def make_photos(target: Path) -> None:
    """JPEGs of the usual size of a photo of MS-COCO."""
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        blocks = rng.integers(0, 256, (48, 64, 3), np.uint8).repeat(10, axis=0).repeat(10, axis=1)
        Image.fromarray(blocks).save(target / f"{i:03d}.jpg", quality=90)


class Watch:
    """Adds up the time that is spent inside the engine."""

    seconds = 0.0

    def __init__(self) -> None:
        run = Engine.masked_scores

        def timed(*arguments, **options):  # type: ignore[no-untyped-def]
            started = time.perf_counter()
            try:
                return run(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - started

        Engine.masked_scores = timed  # type: ignore[method-assign]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        if len(sys.argv) == 1:
            make_photos(photos)
        names = sorted(path.name for path in photos.glob("*.jpg"))[:PHOTOS]
        labels = Path(scratch) / "labels.csv"
        labels.write_text("file,thing\n" + "".join(f"{name},1\n" for name in names))
        dataset = limit(folder(photos, SIZE, labels=labels), PHOTOS)
        model = timm.create_model("resnet18", pretrained=False, num_classes=1)
        demux = PatchDemux(Classifier(model), PatchThreat.from_area(0.02, SIZE), batch_size=16)
        watch = Watch()
        started = time.perf_counter()
        evaluate(demux, dataset, Path(scratch) / "run")
        whole = time.perf_counter() - started
    print(row("what", "time", "share of the forward passes"))
    print(row(*["---"] * 3))
    print(
        row(
            f"forward passes, {len(names)} photos, ResNet-18 at {SIZE}",
            f"{watch.seconds:.1f} s",
            "",
        )
    )
    print(
        row("everything else", f"{whole - watch.seconds:.2f} s", f"{whole / watch.seconds - 1:.1%}")
    )


if __name__ == "__main__":
    main()
