"""What must be there before an experiment can start: model, data and weights, or how to get them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchdemux.models.loading import FORMS
from patchdemux.reproduce.entries import Experiment
from patchdemux.reproduce.jobs import Job


def check_needs(experiment: Experiment, jobs: Sequence[Job]) -> None:
    """Everything that is absent, in one error that says what to get and where to put it."""
    missing = []
    data, model = experiment.data, experiment.model
    if jobs[0].model == model.name and f'"{model.name}"' not in FORMS:
        missing.append(
            f"model: this version cannot make the paper's {model.title}; give one with --model: "
            f"{FORMS}"
        )
    where = jobs[0].data
    if where.partition(":")[0] != "digits" and not Path(where).exists():
        missing.append(
            f"data: there is no {where}. Get {data.title}; unpack it so that the folder has "
            f"{data.layout}; then give --data FOLDER, or put it at {data.place}"
        )
    absent = [job for job in jobs if job.weights is not None and not job.weights.is_file()]
    for job in absent:
        name, file = job.variant.checkpoint, job.weights
        what = model.checkpoint if name is None else f"{model.title} {job.variant.training}"
        give = f"--weights {'' if name is None else f'{name}='}FILE"
        missing.append(
            f"weights: there is no {file}. Get {what}; then give {give}, or put it at {file}"
        )
    if missing:
        listed = "\n".join(f"  {text}" for text in dict.fromkeys(missing))  # each of them once
        raise FileNotFoundError(f"{experiment.name} cannot start yet; it needs\n{listed}")


def not_given(experiment: Experiment, jobs: Sequence[Job]) -> list[str]:
    """Which of the checkpoints to compare are left out, in words."""
    there = {job.variant.checkpoint for job in jobs}
    left_out = [name for name in experiment.checkpoints if name not in there]
    if not left_out:
        return []
    return [f"left out, as no weights were given for them: {', '.join(left_out)}"]
