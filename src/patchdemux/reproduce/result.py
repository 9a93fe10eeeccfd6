"""An experiment carried out: measured figures beside the published ones."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchdemux.reproduce.entries import Experiment
from patchdemux.reproduce.experiments import experiment
from patchdemux.reproduce.figures import draw
from patchdemux.reproduce.jobs import Choices, Job, jobs_of
from patchdemux.reproduce.measure import WHOLE_CURVE, figures_of, run_of
from patchdemux.reproduce.needs import check_needs, not_given
from patchdemux.reproduce.published import Published, read_published
from patchdemux.reproduce.table import Line
from patchdemux.reproduce.timing import MEDIAN, Tell, time_inference
from patchdemux.runs.progress import Status


@dataclass(frozen=True)
class Result:
    """An experiment carried out.

    Attributes:
        experiment: which one.
        lines: its table.
        commands: those that do the same step by step.
        pictures: the figures that were drawn.
        notes: what a reader of the table must know.
    """

    experiment: Experiment
    lines: tuple[Line, ...]
    commands: tuple[str, ...]
    pictures: tuple[Path, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values; what could not be measured or is not at hand is null."""

        def plain(value: float | None) -> float | None:
            return None if value is None or math.isnan(value) else value

        return {
            "experiment": self.experiment.name,
            "shows": self.experiment.sentence,
            "rows": [
                {
                    "variant": line.variant,
                    "setting": line.setting,
                    "figure": line.figure,
                    "measured": plain(line.measured),
                    "published": plain(line.published),
                    "difference": plain(line.difference),
                }
                for line in self.lines
            ],
            "commands": list(self.commands),
            "pictures": [str(picture) for picture in self.pictures],
            "notes": list(self.notes),
        }


def reproduce(name: str, choices: Choices, tell: Tell | None = None) -> Result:
    """Carry out an experiment of the paper: run what is missing, measure, compare, draw.

    Args:
        name: of the experiment, as in `EXPERIMENTS`.
        choices: data, weights, and where the results go.
        tell: called with what is being done, how much of it is done, and the total.
    """
    chosen = experiment(name)
    jobs = jobs_of(chosen, choices)
    check_needs(chosen, jobs)
    published = read_published()
    notes = not_given(chosen, jobs)
    if chosen.timed:
        timings, words = time_inference(chosen, jobs, tell)
        notes.append(words)
        lines = [
            _line(chosen, published, variant, setting, MEDIAN, value)
            for variant, setting, value in timings
        ]
    else:
        lines = [line for job in jobs for line in _measure(chosen, published, job, tell)]
        notes.append(
            f"P@25%, P@50%, P@75% and AP (the area between 25% and 100% recall over 0.75) follow the "
            f"paper's protocol; a dash is a recall that its thresholds do not reach; {WHOLE_CURVE} is "
            f"the same area through every threshold; all in percent"
        )
    if any(line.published is None for line in lines if line.figure != WHOLE_CURVE):
        notes.append(f"not at hand: see {chosen.source} in the paper ({published.paper})")
    if other := departures(chosen, choices, jobs):
        notes.append(f"not the paper's: {', '.join(other)}; so differences say little")
    choices.output.mkdir(parents=True, exist_ok=True)
    pictures = draw(chosen, jobs, lines, choices.output) if chosen.axis else ()
    result = Result(chosen, tuple(lines), commands(chosen, choices), pictures, tuple(notes))
    text = json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n"
    (choices.output / f"{name}.json").write_text(text, encoding="utf-8")
    return result


def commands(chosen: Experiment, choices: Choices) -> tuple[str, ...]:
    """The equivalent commands, with every flag; nothing needs to be there."""
    jobs = jobs_of(chosen, choices)
    if not chosen.timed:
        attackers = "location-fn" in chosen.settings
        return tuple(shlex.join(words) for job in jobs for words in job.commands(attackers))
    first = jobs[0]
    flags = dict(zip(first.flags()[::2], first.flags()[1::2], strict=True))
    for own in ("--patch", "--masks", "--year"):
        flags.pop(own, None)
    flags = {"--data": first.data, **flags, "--output": str(choices.output)}
    words = ["patchdemux", "reproduce", chosen.name]
    return (
        shlex.join([*words, *(word for flag in flags.items() for word in flag)]),
        *(
            f"# times PatchDemux.predict with --patch {job.variant.patch} --masks "
            f"{job.variant.masks} at threshold {chosen.threshold:g}"
            for job in jobs
        ),
    )


def departures(chosen: Experiment, choices: Choices, jobs: Sequence[Job]) -> list[str]:
    """In what a person's choices differ from the paper's."""
    here = {
        "model": choices.model not in (None, chosen.model.name),
        "input size": jobs[0].size != chosen.model.size,
        "data": jobs[0].options != chosen.data.options,
        "number of images": choices.limit is not None,
    }
    return [what for what, differs in here.items() if differs]


def _measure(chosen: Experiment, published: Published, job: Job, tell: Tell | None) -> list[Line]:
    """The lines of one run, which is made, resumed or reused."""
    name = job.variant.name

    def report(status: Status) -> None:
        views, images = (status.views_done, status.views), (status.images_done, status.images)
        if tell:
            tell(f"{status.stage}, {name}", *(views if status.views else images))

    run = run_of(job, report)
    figures = figures_of(run, chosen.settings, chosen.key_recalls)
    return [
        _line(chosen, published, name, setting, figure, value)
        for setting, row in figures.items()
        for figure, value in row.items()
    ]


def _line(
    chosen: Experiment, published: Published, variant: str, setting: str, figure: str, value: float
) -> Line:
    known = published.value((chosen.name, variant, setting, figure))
    return Line(variant, setting, figure, value, known)
