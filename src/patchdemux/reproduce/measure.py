"""Making the runs of an experiment, and reading the figures of the paper's tables off them."""

from __future__ import annotations

import torch

from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.data.open import open_dataset
from patchdemux.defenses import DoubleMasking
from patchdemux.demux import PatchDemux
from patchdemux.metrics.curves import Setting, precision_recall_curve
from patchdemux.metrics.protocol import paper_protocol
from patchdemux.models.loading import load_model, made_to_size
from patchdemux.reproduce.jobs import Job
from patchdemux.runs import Run, evaluate
from patchdemux.runs.progress import Report

WHOLE_CURVE = "AP curve"
"""The paper's average precision through every threshold, instead of its list of 45."""


def dataset_of(job: Job) -> ImageSet:
    """The images of a run."""
    year, split = job.options.get("year"), job.options.get("split")
    return open_dataset(job.data, job.size, year=year, split=split)


def classifier_of(job: Job, dataset: ImageSet) -> Classifier:
    """The classifier of a run, on its device."""
    classifier = load_model(
        job.model,
        weights=job.weights,
        class_names=dataset.class_names if made_to_size(job.model) else None,
        image_size=job.size,
    )
    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return classifier.to(device)


def demux_of(classifier: Classifier, job: Job) -> PatchDemux:
    """The defended classifier of a run."""
    defense = DoubleMasking(job.variant.masks)
    return PatchDemux(
        classifier, job.threat, defense, image_size=job.size, batch_size=job.batch_size
    )


def run_of(job: Job, progress: Report) -> Run:
    """The run of a job: resumed where it was interrupted, and only checked where it is complete."""
    dataset = dataset_of(job)
    demux = demux_of(classifier_of(job, dataset), job)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    return evaluate(
        demux, dataset, job.path, model_id=job.model, limit=job.limit, progress=progress
    )


def figures_of(
    run: Run, settings: tuple[Setting, ...], key_recalls: bool
) -> dict[Setting, dict[str, float]]:
    """The figures of each setting in percent, by the paper's protocol and through every threshold.

    NaN is a recall that the thresholds of the protocol do not reach.
    """
    bounds, targets = run.bounds(), run.targets
    figures: dict[Setting, dict[str, float]] = {}
    for setting in settings:
        row = paper_protocol(bounds, targets, setting)
        curve = precision_recall_curve(bounds, targets, setting)
        at = {f"P@{recall:.0%}": value for recall, value in row.precision_at.items()}
        own = {
            **(at if key_recalls else {}),
            "AP": row.average_precision,
            WHOLE_CURVE: curve.paper_average_precision(),
        }
        figures[setting] = {name: 100 * value for name, value in own.items()}
    return figures
