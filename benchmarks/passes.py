"""Forward passes per image that double masking takes to decide all classes at a threshold.

Compared on tables of all scores: the published procedure, the package's schedule, and an order that
knows all scores beforehand. `python -m benchmarks.passes` takes digit scenes, and with
`--data PHOTOS [--weights FILE]` photos, too, as EfficientNet-Lite0 with 80 classes sees them; without
weights, those that ship with the package. `--scores FILE.npz` adds other models: each file holds
`scores` (image, view, class), views as in `MaskSet.unions()`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from benchmarks.core import MASKS, row
from benchmarks.machine import machine
from benchmarks.model import photos, plain_model, told
from patchdemux import Classifier, Engine, MaskSet, PatchThreat
from patchdemux.bounds import median
from patchdemux.certify import exceeds
from patchdemux.data.digits import IMAGE_SIZE, digit_scenes
from patchdemux.defenses.schedule import Schedule
from patchdemux.inputs import logit
from patchdemux.models.digit_net import digit_net
from patchdemux.runtimes import make_runtime

THRESHOLDS = (0.2, 0.5, 0.8)
BATCH = 32
"""Views per call of the model."""

Table = Float[np.ndarray, "image mask mask class"]
Above = Bool[np.ndarray, "mask mask class"]


def published(above: Above) -> int:
    """Passes of one image: every disagreeing mask in turn, with all second masks of each.

    The passes are shared by all classes that still need them; a class drops out when it is resolved.
    """
    masks = len(above)
    first, majority = first_round(above)
    unresolved = np.ones(above.shape[2], bool)
    passes = masks
    for mask in range(masks):
        disagree = unresolved & (first[mask] != majority)
        if disagree.any():
            passes += masks
            unanimous = (above[mask] == first[mask]).all(axis=0)
            unresolved &= ~(disagree & unanimous)
    return passes


def clairvoyant(above: Above) -> int:
    """Passes of one image by a greedy order that knows all scores beforehand.

    First the unanimous rows that decide the labels which differ from the majority: always the one
    that decides the most for each view it still takes. Then, for the other classes, always the pair
    that ends the most rows, until no disagreeing row is left.
    """
    masks = len(above)
    first, majority = first_round(above)
    known = np.eye(masks, dtype=bool)
    contrary = above == majority
    unanimous = ~contrary.any(axis=1)
    minority = unanimous.any(axis=0)
    left = minority.copy()
    while left.any():
        decides = (unanimous & left).sum(axis=1)
        best = int((decides / np.maximum((~known).sum(axis=1), 0.01)).argmax())
        known[best] = known[:, best] = True
        left &= ~unanimous[best]
    rows = (first != majority) & ~minority & ~(contrary & known[:, :, None]).any(axis=1)
    while rows.any():
        ends = np.einsum("mnc,mc->mn", contrary, rows.astype(int))
        one, other = divmod(int(np.where(known, -1, ends + ends.T).argmax()), masks)
        known[one, other] = known[other, one] = True
        rows[[one, other]] &= ~contrary[one, other]
    return int(np.triu(known).sum())


def first_round(above: Above) -> tuple[Bool[np.ndarray, "mask class"], Bool[np.ndarray, " class"]]:
    """Labels under each mask alone, and their majority, ties to 0."""
    masks = len(above)
    first = above[range(masks), range(masks)]
    return first, 2 * first.sum(axis=0) > masks


@dataclass
class Measured:
    """The schedule's passes per image, model calls per batch of images, and own time per image."""

    passes: list[int]
    rounds: float
    milliseconds: float


def scheduled(table: Table, threshold: float, together: int) -> Measured:
    """The package's schedule, with some images at a time, fed from the table."""
    masks = table.shape[1]
    passes: list[int] = []
    rounds, spent = [], 0.0
    for start in range(0, len(table), together):
        batch = table[start : start + together]
        singles = np.ascontiguousarray(batch[:, range(masks), range(masks)])
        started = time.perf_counter()
        schedule = Schedule(singles, median(singles), threshold)
        count = 0
        while len(jobs := schedule.next_views(BATCH)):
            spent += time.perf_counter() - started
            scores = batch[tuple(jobs.T)]
            started = time.perf_counter()
            schedule.learn(jobs, scores)
            count += 1
        lower, _ = schedule.intervals()
        spent += time.perf_counter() - started
        check_labels(batch, exceeds(lower, threshold), threshold)
        passes += (masks + schedule.views()).tolist()
        rounds.append(count)
    return Measured(passes, float(np.mean(rounds)), 1e3 * spent / len(table))


def check_labels(table: Table, labels: Bool[np.ndarray, "image class"], threshold: float) -> None:
    """The labels are those of all pairs together."""
    singles = table[:, range(table.shape[1]), range(table.shape[1])]
    floor, ceiling = table.min(axis=2).max(axis=1), table.max(axis=2).min(axis=1)
    defended = np.clip(median(singles), floor, ceiling)
    if not np.array_equal(labels, exceeds(defended, threshold)):
        raise AssertionError("the schedule gave another label than all pairs together")


def report(name: str, table: Table) -> Iterator[str]:
    """Lines of the Markdown table for one model."""
    for probability in THRESHOLDS:
        threshold = logit(probability)
        tables = [exceeds(image, threshold) for image in table]
        theirs = [published(above) for above in tables]
        ideal = [clairvoyant(above) for above in tables]
        batch, single = scheduled(table, threshold, BATCH), scheduled(table, threshold, 1)
        yield row(
            f"{name}, {probability}",
            spread(theirs),
            spread(batch.passes),
            spread(single.passes),
            spread(ideal),
            f"{np.mean(theirs) / np.mean(batch.passes):.2f} x",
            f"{np.mean(batch.passes) / np.mean(ideal):.3f}",
            f"{batch.rounds:.0f} / {single.rounds:.1f}",
            f"{batch.milliseconds:.2f} / {single.milliseconds:.2f}",
        )


def spread(passes: list[int]) -> str:
    """Mean, median and 95th percentile."""
    return f"{np.mean(passes):.1f}, {np.median(passes):.0f}, {np.percentile(passes, 95):.0f}"


def symmetric(scores: Float[np.ndarray, "image view class"]) -> Table:
    """The table of all pairs of masks from the scores of their distinct unions."""
    masks = int(np.sqrt(2 * scores.shape[1]))
    one, other = np.triu_indices(masks)
    view = np.empty((masks, masks), int)
    view[one, other] = view[other, one] = range(scores.shape[1])
    return scores[:, view]


def digit_table(scenes: int) -> Table:
    """All scores of digit scenes: 6 x 6 masks against patches of 2%."""
    masks = MaskSet.covering(IMAGE_SIZE, PatchThreat.from_area(0.02, IMAGE_SIZE), (6, 6))
    engine = Engine(Classifier(digit_net()))
    images = digit_scenes(scenes, split="test").images
    return symmetric(engine.masked_scores(images, masks.dense(), masks.unions()))


def photo_table(
    weights: Path | None, data: Path, count: int, runtime: str, precision: str
) -> Table:
    """All scores of photos spread over a data set: 6 x 6 masks against patches of 2%."""
    classifier = make_runtime(Classifier(plain_model(weights)), runtime, precision)
    images = photos(count, MASKS.image_size[0], data)
    engine = Engine(classifier, batch_size=BATCH)
    return symmetric(engine.masked_scores(images, MASKS.dense(), MASKS.unions()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=200, help="digit scenes")
    parser.add_argument("--scores", type=Path, nargs="*", default=[], help="tables of other models")
    parser.add_argument("--weights", type=Path, help="of EfficientNet-Lite0 with 80 classes")
    parser.add_argument("--data", type=Path, help="zip or folder of photos")
    parser.add_argument("--images", type=int, default=100, help="photos")
    parser.add_argument("--runtime", default="torch", help="what runs the model on photos")
    parser.add_argument("--precision", default="float32", help="in which numbers")
    options = parser.parse_args()
    print(machine("Counts, the same on any machine"))
    print("Passes per image: mean, median, 95th percentile; images decided in batches or alone.\n")
    print(
        row(
            "model, threshold",
            "published",
            f"scheduled, {BATCH} images",
            "scheduled, 1 image",
            "clairvoyant",
            "published / scheduled",
            "scheduled / clairvoyant",
            f"rounds, {BATCH} images / 1",
            "scheduling, ms per image",
        )
    )
    print(row(*["---"] * 9))
    for line in report("digit scenes", digit_table(options.scenes)):
        print(line, flush=True)
    if options.data is not None:
        runtime, precision = options.runtime, options.precision
        table = photo_table(options.weights, options.data, options.images, runtime, precision)
        what = f"{len(table)} photos, {told(options.weights, options.data)}"
        for line in report(what, table):
            print(line, flush=True)
    for path in options.scores:
        with np.load(path) as file:
            table = symmetric(file["scores"])
        for line in report(f"{path.stem} ({len(table)} images)", table):
            print(line, flush=True)


if __name__ == "__main__":
    main()
