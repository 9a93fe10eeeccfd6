"""What Greedy Cutout costs: forward passes per image, and its share of the time of a training step.

`python -m benchmarks.greedy` takes the untrained network of the COCO classifier at 224 x 224 pixels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.core import row
from patchdemux import Classifier
from patchdemux.allocator import keep_freed_memory
from patchdemux.models.coco import untrained
from patchdemux.training import Recipe
from patchdemux.training.batches import Place
from patchdemux.training.cutout import searched_views
from patchdemux.training.hiding import Hider
from patchdemux.training.losses import asymmetric_losses
from patchdemux.training.processes import Processes
from patchdemux.training.state import Learner

RECIPES = {
    "plain": Recipe(cutout="none"),
    "random": Recipe(cutout="random"),
    "greedy 3 x 3": Recipe(masks=(3,)),
    "greedy 3, 6": Recipe(masks=(3, 6)),
    "greedy 6 x 6": Recipe(masks=(6,)),
}


def measured(classifier: Classifier, recipe: Recipe, images: int) -> tuple[int, float, float]:
    """Passes per image of the search, and seconds of a step: for what is hidden, and for learning."""
    torch.manual_seed(0)
    size = (224, 224)
    shown = torch.rand(images, 3, *size)
    targets = (torch.rand(images, 80) < 0.04).float()
    losses = asymmetric_losses(recipe)
    hider = Hider(classifier, recipe, size, losses)
    learner = Learner(classifier, recipe, 10, losses, Processes(torch.device("cpu")))
    learner.learn(shown, targets)
    hiding = seconds(lambda: hider.hide(Place(0, np.arange(images)), shown, targets))
    learning = seconds(lambda: learner.learn(shown, targets))
    views = searched_views(hider.levels) if hider.levels else 0
    return views, hiding, learning


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, at its fastest."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=16, help="images per step")
    images = parser.parse_args().images
    keep_freed_memory()
    classifier = untrained().to(memory_format=torch.channels_last)
    plain = 0.0
    print(row("recipe", "passes per image", "share of the time", "time of a step, plain = 1"))
    print(row(*["---"] * 4))
    for name, recipe in RECIPES.items():
        views, hiding, learning = measured(classifier, recipe, images)
        plain = plain or hiding + learning
        whole = hiding + learning
        print(row(name, str(views), f"{hiding / whole:.0%}", f"{whole / plain:.1f}"), flush=True)


if __name__ == "__main__":
    main()
