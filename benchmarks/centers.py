"""Which inference is best? With the same certificate, the center of the clip is free.

`python -m benchmarks.centers [DATA] [--images 100]`: digit scenes and the network of the demo; with
photos of the 80 classes of MS-COCO as DATA, these and the shipped classifier as well. One table of all
pairs of masks per image gives every row: the paper's AP without an attack, and precision and recall at
a probability of 0.5.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from patchdemux import Classifier, DoubleMasking, Engine, PatchThreat, ScoreBounds
from patchdemux.bounds import Guard, median
from patchdemux.data import every, open_dataset
from patchdemux.data.digits import digit_scenes
from patchdemux.metrics import precision_recall_curve
from patchdemux.metrics.curves import operating_point
from patchdemux.models.coco import IMAGE_SIZE, coco_classifier
from patchdemux.models.digit_net import digit_net
from patchdemux.runtimes import make_runtime

GUARDS: tuple[Guard, ...] = ("both", "recall", "precision")
AT_ONCE = 16


def rows(classifier: Classifier, images: Tensor, targets: np.ndarray) -> list[tuple[str, ...]]:
    """Every center and guard, from one table of pairs per image."""
    size = (images.shape[2], images.shape[3])
    masks = DoubleMasking().mask_set(size, PatchThreat.from_area(0.02, size))
    unions, count = masks.unions(), len(masks)
    view = np.empty((count, count), int)
    view[unions[:, 0], unions[:, 1]] = view[unions[:, 1], unions[:, 0]] = range(len(unions))
    engine = Engine(classifier)
    clean = engine.scores(images)
    singles, lower, upper = [], [], []
    for part in torch.split(images, AT_ONCE):
        pairs = engine.masked_scores(part, masks.dense(), unions)[:, view]
        singles.append(np.diagonal(pairs, axis1=1, axis2=2).swapaxes(1, 2))
        lower.append(pairs.min(axis=2))
        upper.append(pairs.max(axis=2))
    single, low, high = (np.concatenate(parts) for parts in (singles, lower, upper))
    centers = {
        "median of the single masks (the paper)": median(single),
        "undefended": clean,
        "mean of the single masks": single.mean(axis=1),
        "highest of the single masks": single.max(axis=1),
        "lowest of the single masks": single.min(axis=1),
    }
    none = ScoreBounds(clean, clean, np.full_like(low, -np.inf), np.full_like(high, np.inf))
    found = [("no defense", "", *figures(none, targets))]
    for name, center in centers.items():
        for guard in GUARDS if name == "undefended" else ("both",):
            bounds = ScoreBounds.from_rows(low, high, single, clean, guard=guard)
            defended = center
            if guard != "precision":
                defended = np.maximum(defended, low.max(axis=1))
            if guard != "recall":
                defended = np.minimum(defended, high.min(axis=1))
            bounds = ScoreBounds(clean, defended, bounds.lower, bounds.upper)
            found.append((name, guard, *figures(bounds, targets)))
    return found


def figures(bounds: ScoreBounds, targets: np.ndarray) -> tuple[str, ...]:
    """AP without an attack, and precision and recall at a probability of 0.5, in percent."""
    ap = precision_recall_curve(bounds, targets, "defended").paper_average_precision()
    precision, recall = operating_point(bounds, targets, "defended", 0.0)
    return tuple(f"{100 * share:.1f}" for share in (ap, precision, recall))


def show(title: str, found: list[tuple[str, ...]]) -> None:
    print(f"{title}\n\n| center | guard | AP | precision | recall |\n|---|---|---|---|---|")
    for row in found:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", help="photos with labels of the 80 classes")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    scenes = digit_scenes(given.scenes)
    found = rows(Classifier(digit_net()), scenes.images, scenes.targets.astype(bool))
    show(f"{given.scenes} digit scenes", found)
    if given.data:
        dataset = open_dataset(given.data, IMAGE_SIZE)
        dataset = every(dataset, max(1, len(dataset) // given.images))
        classifier = make_runtime(coco_classifier(), given.runtime, given.precision)
        images = torch.stack([dataset[i] for i in range(len(dataset))])
        show(f"{len(dataset)} photos", rows(classifier, images, dataset.targets.astype(bool)))


if __name__ == "__main__":
    main()
