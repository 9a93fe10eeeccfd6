"""The paper's experiments: what each runs, and its figures beside the published ones."""

from patchdemux.reproduce.entries import Experiment, Variant
from patchdemux.reproduce.experiments import EXPERIMENTS, experiment
from patchdemux.reproduce.jobs import Choices, Job, jobs_of
from patchdemux.reproduce.published import Published, PublishedFigure, read_published
from patchdemux.reproduce.result import Result, commands, reproduce
from patchdemux.reproduce.table import Line

__all__ = [
    "EXPERIMENTS",
    "Choices",
    "Experiment",
    "Job",
    "Line",
    "Published",
    "PublishedFigure",
    "Result",
    "Variant",
    "commands",
    "experiment",
    "jobs_of",
    "read_published",
    "reproduce",
]
