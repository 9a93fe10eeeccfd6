"""All families of defenses on digit scenes, each with a network that was trained for it.

`python -m benchmarks.families --weights FOLDER [--plot FILE]`, where the folder holds what the scripts
`scripts/train_*.py` wrote: one row per family and patch, with the paper's AP in every setting, and
passes and milliseconds per image; and two patches at once, against one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from torch import nn

from benchmarks.core import row
from benchmarks.machine import machine
from patchdemux import (
    Classifier,
    Defense,
    DoubleMasking,
    IntervalBounds,
    PatchDemux,
    PatchThreat,
    ScoreBounds,
    Smoothing,
)
from patchdemux.data.digits import CLASS_NAMES, IMAGE_SIZE, DigitScenes, digit_scenes
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.defenses.local_votes import LocalVotes, RobustMasking
from patchdemux.metrics import precision_recall_curve
from patchdemux.metrics.curves import Setting
from patchdemux.models.digit_cells import HIGH, LOW, local_net, split_net
from patchdemux.models.digit_net import DigitNet, interval_net

SHIPPED = Path(__file__).parents[1] / "src/patchdemux/models/weights"
PATCHES = (0.01, 0.02, 0.04)
SETTINGS: tuple[Setting, ...] = ("undefended", "defended", "certified", "location", "exact")
COLUMNS = ("undefended", "defended", "certified", "location", "exact", "views", "ms per image")


@dataclass(frozen=True)
class Family:
    """A network that was trained for a defense.

    Attributes:
        make: the network, untrained.
        weights: the name of its file, as the scripts that train the networks write it.
        defense: with the settings that the network was trained for.
        visible_channel: whether the network is told which pixels are visible.
    """

    make: Callable[[], nn.Module]
    weights: str
    defense: Defense
    visible_channel: bool = False

    def classifier(self, folder: Path) -> Classifier:
        """The network with the weights in a folder, or else those that ship, ready to classify."""
        network = self.make()
        path = folder / f"{self.weights}.safetensors"
        network.load_state_dict(load_file(path if path.is_file() else SHIPPED / path.name))
        return Classifier(
            network.eval(),
            class_names=CLASS_NAMES,
            image_size=IMAGE_SIZE,
            visible_channel=self.visible_channel,
        )


FAMILIES = {
    "double-masking": Family(DigitNet, "digits", DoubleMasking()),
    "feature-masking": Family(split_net, "digits_features", FeatureMasking("front")),
    "local-votes": Family(local_net, "digits_local", LocalVotes("local", LOW, HIGH)),
    "robust-masking": Family(local_net, "digits_local", RobustMasking("local", LOW, HIGH)),
    "smoothing": Family(
        lambda: DigitNet(channels=4), "digits_windows", Smoothing("columns", 12, 4, 0.4), True
    ),
    "interval-bounds": Family(interval_net, "digits_intervals", IntervalBounds(6)),
}
"""By the name of the defense."""


def measured(
    classifier: Classifier, threat: PatchThreat, defense: Defense, scenes: DigitScenes
) -> tuple[ScoreBounds, float]:
    """Bounds, and milliseconds per image, once everything is warm."""
    demux = PatchDemux(classifier, threat, defense)
    demux.bounds(scenes.images[:4])
    started = time.perf_counter()
    bounds = demux.bounds(scenes.images)
    return bounds, 1e3 * (time.perf_counter() - started) / len(scenes.images)


def figures(bounds: ScoreBounds, targets: np.ndarray) -> list[float]:
    """The paper's AP in every setting, in percent."""
    true = targets.astype(bool)
    curves = (precision_recall_curve(bounds, true, setting) for setting in SETTINGS)
    return [100 * curve.paper_average_precision() for curve in curves]


def cells(found: list[float], views: int | None, milliseconds: float) -> list[str]:
    return [*(f"{ap:.1f}" for ap in found), f"{views or '-'}", f"{milliseconds:.1f}"]


def draw(path: Path, found: dict[str, list[list[float]]]) -> None:
    """Of every family and patch: defended AP as a line over the bar of what is certified."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(PATCHES)
    for number, patch in enumerate(PATCHES):
        at = np.arange(len(found)) + (number - (len(PATCHES) - 1) / 2) * width
        rows = np.array([family[number] for family in found.values()])
        color = f"C{number}"
        label = f"location-aware, patch of {patch:.0%}"
        axes.bar(at, rows[:, 3], width * 0.9, color=color, label=label)
        axes.bar(at, rows[:, 2], width * 0.9, fill=False, edgecolor="black", linewidth=0.8)
        axes.hlines(rows[:, 1], at - width / 2, at + width / 2, color=color)
    axes.set_xticks(range(len(found)), list(found))
    axes.set_ylim(0, 100)
    axes.set_ylabel("AP (paper), %")
    axes.set_title(
        "bar: location-aware AP; outline: certified (Algorithm 2); line: defended, no attack",
        fontsize=10,
    )
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--weights", type=Path, default=SHIPPED, help="folder of trained networks")
    parser.add_argument("--plot", type=Path, help="a picture of it, as a PNG")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args()
    scenes = digit_scenes(options.scenes, "test")
    print(machine(f"{options.scenes} digit scenes of {IMAGE_SIZE} x {IMAGE_SIZE} pixels"))
    print(row("family", "patch", *COLUMNS))
    print(row(*["---"] * (2 + len(COLUMNS))))
    found: dict[str, list[list[float]]] = {}
    for name in options.families:
        family = FAMILIES[name]
        for patch in PATCHES:
            threat = PatchThreat.from_area(patch, IMAGE_SIZE)
            bounds, spent = measured(
                family.classifier(options.weights), threat, family.defense, scenes
            )
            found.setdefault(name, []).append(figures(bounds, scenes.targets))
            views = family.defense.views((IMAGE_SIZE, IMAGE_SIZE), threat)
            print(row(name, f"{patch:.0%}", *cells(found[name][-1], views, spent)), flush=True)
    if options.plot:
        draw(options.plot, found)

    print("\nPatches of 1%, double masking with 3 x 3 masks.\n")
    print(row("patches at once", *COLUMNS))
    print(row(*["---"] * (1 + len(COLUMNS))))
    one = PatchThreat.from_area(0.01, IMAGE_SIZE)
    classifier, defense = FAMILIES["double-masking"].classifier(options.weights), DoubleMasking(3)
    for count in (1, 2):
        threat = PatchThreat(one.height, one.width, count=count)
        bounds, spent = measured(classifier, threat, defense, scenes)
        views = defense.views((IMAGE_SIZE, IMAGE_SIZE), threat)
        aps = figures(bounds, scenes.targets)
        print(row(str(count), *cells(aps, views, spent)), flush=True)


if __name__ == "__main__":
    main()
