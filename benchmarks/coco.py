"""How robust classifiers of MS-COCO are: the figures of the model card, as a Markdown table.

`python -m benchmarks.coco DATA RUNS NAME=WEIGHTS... [--patch 2%] [--limit 500]`: one row per file of
weights of the shipped network ("coco" stands for the weights that ship) and patch. The runs are
ordinary ones in the folder RUNS: a killed one resumes, and `patchdemux report` opens them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from patchdemux import Classifier, DoubleMasking, PatchDemux, mean_average_precision
from patchdemux.cli.words import as_threat
from patchdemux.data import every, open_dataset
from patchdemux.metrics import precision_recall_curve
from patchdemux.metrics.curves import Setting
from patchdemux.models.coco import IMAGE_SIZE, coco_classifier, untrained
from patchdemux.models.loading import load_weights
from patchdemux.runs import Run, evaluate
from patchdemux.runtimes import make_runtime

SETTINGS: tuple[Setting, ...] = ("undefended", "defended", "certified", "location", "exact")
COLUMNS = ("weights", "patch", "images", "mAP", "mAP certified", *(f"AP {s}" for s in SETTINGS))


def classifier_of(weights: str) -> Classifier:
    """The shipped network with the weights of a file, or with its own."""
    if weights == "coco":
        return coco_classifier()
    classifier = untrained()
    load_weights(classifier.model, weights)
    return classifier.eval()


def figures(run: Run) -> list[str]:
    """A row of the table: mAP over the classes, and the paper's AP in every setting, in percent."""
    bounds = run.bounds()
    shares = [
        mean_average_precision(bounds, run.targets, "undefended"),
        mean_average_precision(bounds, run.targets, "certified"),
        *(
            precision_recall_curve(bounds, run.targets, setting).paper_average_precision()
            for setting in SETTINGS
        ),
    ]
    return [f"{len(run):,}", *(f"{100 * share:.1f}" for share in shares)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="photos with labels of the 80 classes")
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("weights", nargs="+", metavar="NAME=WEIGHTS", help="or NAME=coco")
    parser.add_argument("--patch", nargs="+", default=["2%"])
    parser.add_argument("--masks", type=int, default=6)
    parser.add_argument("--limit", type=int, help="about so many images, evenly spread")
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    dataset = open_dataset(given.data, IMAGE_SIZE)
    if given.limit:
        dataset = every(dataset, max(1, len(dataset) // given.limit))
    print(f"{given.masks} x {given.masks} masks, {given.runtime} in {given.precision}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for patch in given.patch:
        for entry in given.weights:
            name, _, weights = entry.partition("=")
            threat = as_threat(patch, dataset.image_size)
            classifier = make_runtime(classifier_of(weights), given.runtime, given.precision)
            demux = PatchDemux(classifier, threat, DoubleMasking(given.masks), IMAGE_SIZE)
            path = given.runs / f"{name}-{threat.height}px-{len(dataset)}"
            run = evaluate(demux, dataset, path)
            cells = (name, f"{patch} ({threat.height} px)", *figures(run))
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
