"""What it takes to hold for a patch on the photo, and not only on the model's input.

`python -m benchmarks.footprint`: how far a patch of the paper's size on a photo of 640 x 480 pixels
reaches, for every filter, without and with JPEG, and how many pixels the masks have to grow.

`python -m benchmarks.footprint --data coco/ --runs runs/footprint --images 200`: what that costs in
certified average precision; the arguments after these are those of `patchdemux evaluate`. Photos that
are squashed already, such as the shipped classifier's training size, count as photos of 640 x 480.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.core import row
from patchdemux import Footprint, MaskSet, PatchThreat, SourcePatch
from patchdemux.cli import app
from patchdemux.cli.options import ModelOptions
from patchdemux.data.open import open_dataset
from patchdemux.data.preprocess import FILTERS, Preprocessing
from patchdemux.data.sizes import sizes_in
from patchdemux.models.coco import IMAGE_SIZE
from patchdemux.report.summary import summarize
from patchdemux.runs import Run

PHOTO = 480, 640
PAPER = ((448, 64), (384, 54))
JPEGS = (None, "4:4:4", "4:2:0")
MASKS = 6, 6


def mask_of(size: int, threat: PatchThreat) -> tuple[int, int]:
    """Height and width of the masks that cover it."""
    height, width = MaskSet.covering(size, threat, MASKS).boxes[0, 2:].tolist()
    return height, width


def same_share(size: int, side: int) -> dict[str, SourcePatch]:
    """Patches that take the share of the photo that a square takes of the paper's input."""
    height, width = (-(-side * length // size) for length in PHOTO)
    square = SourcePatch(share=side * side / (size * size))
    return {
        f"{height} x {width}, squashed to a square": SourcePatch(height, width),
        "{} x {}, a square on the photo".format(*square.on(PHOTO)): square,
    }


def growth() -> None:
    """How far the patches reach, and what the masks become."""
    for size, side in PAPER:
        plain = PatchThreat(side, side)
        mask = mask_of(size, plain)
        print(
            f"\n{side} pixels at {size}: masks of {mask[0]} x {mask[1]}. The same share of a photo "
            f"of {PHOTO[1]} x {PHOTO[0]}: reach, and pixels that the mask grows, height x width.\n"
        )
        for name, patch in same_share(size, side).items():
            print(row(f"patch of {name}", "no JPEG", "JPEG 4:4:4", "JPEG 4:2:0"))
            print(row(*["---"] * 4))
            for filter in FILTERS:
                cells = []
                for jpeg in JPEGS:
                    put = SourcePatch(patch.height, patch.width, patch.share, jpeg)
                    threat = Footprint.of(put, [PHOTO], Preprocessing(size, filter=filter)).threat
                    grown = mask_of(size, threat)
                    more = " x ".join(f"{g - m:+d}" for g, m in zip(grown, mask, strict=True))
                    cells.append(f"{threat.height} x {threat.width} ({more})")
                print(row(filter, *cells), flush=True)
            print()


def cost(data: str, runs: Path, images: int, more: list[str]) -> None:
    """Certified average precision with masks for the input, and for the photo."""
    size = ModelOptions(size=option(more, "--size")).given_size or (IMAGE_SIZE, IMAGE_SIZE)
    annotations, split = option(more, "--annotations"), option(more, "--split")
    photos = open_dataset(data, size, annotations=annotations, split=split)
    squashed = set(sizes_in(photos, images)) == {size}
    plain = PatchThreat.from_area(0.02, size)
    patches = {"on the input": [f"{plain.height}px"]}
    for jpeg in (None, "4:2:0"):
        name = "on the photo" + (f", JPEG {jpeg}" if jpeg else "")
        if squashed:
            patch = SourcePatch(share=0.02, jpeg=jpeg)
            threat = Footprint.of(patch, [PHOTO], size).threat
            patches[name] = [f"{threat.height}x{threat.width}px"]
        else:
            patches[name] = ["2%@source", *(["--jpeg", jpeg] if jpeg else [])]
    found = []
    for number, (name, patch_options) in enumerate(patches.items()):
        path = runs / str(number)
        arguments = ["evaluate", data, str(path), "--limit", str(images)]
        app([*arguments, "--patch", *patch_options, *more], standalone_mode=False)
        found.append((name, Run.open(path)))
    print("\nA patch of 2%; paper's average precision in %.\n")
    print(row("patch", "reach", "mask", "defended", "Algorithm 2", "Algorithm 3", "exact"))
    print(row(*["---"] * 7))
    for name, run in found:
        figures = {r.setting: r.curve for r in summarize(run.bounds(), run.targets)}
        mask = run.boxes[0, 2:] if run.boxes is not None else (0, 0)
        print(
            row(
                name,
                f"{run.threat.height} x {run.threat.width}",
                f"{mask[0]} x {mask[1]}",
                *(
                    f"{100 * figures[setting].paper_average_precision():.1f}"
                    for setting in ("defended", "certified", "location", "exact")
                ),
            )
        )


def option(arguments: list[str], name: str) -> str | None:
    """The value of an option among the arguments of `patchdemux evaluate`."""
    return arguments[arguments.index(name) + 1] if name in arguments else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="photos, as for `patchdemux evaluate`; without: the table")
    parser.add_argument("--runs", type=Path, default=Path("runs/footprint"))
    parser.add_argument("--images", type=int, default=200)
    options, more = parser.parse_known_args()
    if options.data is None:
        if more:
            sys.exit(f"unknown arguments: {' '.join(more)}")
        growth()
    else:
        cost(options.data, options.runs, options.images, ["--model", "coco", *more])


if __name__ == "__main__":
    main()
