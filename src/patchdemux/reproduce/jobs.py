"""From an experiment and a person's choices to the runs it needs, and the command line of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from patchdemux.data.open import coco_files, voc_years
from patchdemux.reproduce.entries import Experiment, Photos, Variant
from patchdemux.threat import PatchThreat


@dataclass(frozen=True)
class Choices:
    """What a person chooses; None means what the experiment says.

    Attributes:
        data: as in `open_dataset`.
        weights: files by the name of the checkpoint; "" where an experiment takes one file.
        model: as in `load_model`. With a model of one's own, weights may be left out.
        size: height and width of the model's input, where it is not the paper's.
        split: of the data, where it is not the paper's.
        output: folder of the runs, tables and figures.
        limit: only the first so many images; of a timing, so many images spread over the data.
        batch_size: views per call of the model.
        device: such as "cuda:1"; None: a GPU if there is one.
    """

    data: str | None = None
    weights: Mapping[str, Path] = field(default_factory=dict)
    model: str | None = None
    size: int | None = None
    split: str | None = None
    output: Path = Path("reproduced")
    limit: int | None = None
    batch_size: int | None = None
    device: str | None = None


@dataclass(frozen=True)
class Job:
    """One run: a variant of an experiment with everything decided."""

    variant: Variant
    path: Path
    data: str
    options: Mapping[str, str]
    model: str
    weights: Path | None
    size: int
    limit: int | None
    batch_size: int | None
    device: str | None

    @property
    def threat(self) -> PatchThreat:
        share = Fraction(self.variant.patch.removesuffix("%")) / 100
        return PatchThreat.from_area(float(share), self.size)

    def flags(self) -> list[str]:
        """Everything that decides the scores, as options of the command line."""
        values: dict[str, object] = {
            "model": self.model,
            "weights": self.weights,
            "size": self.size,
            "patch": self.variant.patch,
            "masks": self.variant.masks,
            **self.options,
            "limit": self.limit,
            "batch-size": self.batch_size,
            "device": self.device,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def commands(self, attackers: bool) -> list[list[str]]:
        """The commands that make this run and show its table, with all attackers if asked for."""
        evaluate = ["patchdemux", "evaluate", self.data, str(self.path), *self.flags()]
        table = ["patchdemux", "table", str(self.path), "--protocol", "paper"]
        return [evaluate, [*table, "--all"] if attackers else table]


def jobs_of(experiment: Experiment, choices: Choices) -> list[Job]:
    """The runs of an experiment, in the order of its table.

    Where checkpoints are compared and some weights are given, only those.
    """
    data = choices.data or experiment.data.place
    options = data_options(experiment.data, data, choices.split)
    weights = weights_of(experiment, choices)
    jobs = []
    for variant in experiment.variants:
        name = variant.checkpoint or ""
        if name not in weights and experiment.checkpoints:
            continue
        model, size = (
            choices.model or experiment.model.name,
            choices.size or experiment.model.size,
        )
        file = weights.get(name)
        parts = [
            *(Path(data).name, options.get("split", ""), model, name),
            *(f"{size}px", variant.patch.replace("%", "pct"), f"{variant.masks}x{variant.masks}"),
            "" if choices.limit is None else f"first{choices.limit}",
        ]
        folder = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts if part)
        jobs.append(
            Job(
                variant=variant,
                path=choices.output / "runs" / folder,
                data=data,
                options=options,
                model=model,
                weights=file,
                size=size,
                limit=choices.limit,
                batch_size=choices.batch_size,
                device=choices.device,
            )
        )
    return jobs


def weights_of(experiment: Experiment, choices: Choices) -> dict[str, Path]:
    """The file of every checkpoint, those given or those in their usual places."""
    names = experiment.checkpoints
    for name in choices.weights:
        if names and name not in names:
            raise ValueError(
                f"{experiment.name} compares checkpoints: give each as --weights NAME=FILE, with "
                f"one of the names {', '.join(names)}"
            )
        if not names and name:
            raise ValueError(f"{experiment.name} takes one file: --weights FILE, without a name")
    if choices.weights:
        return dict(choices.weights)
    place = Path(experiment.model.place)
    if names:
        return {name: place.with_name(f"{place.stem}-{name}.pth") for name in names}
    return {} if choices.model else {"": place}


def data_options(photos: Photos, data: str, split: str | None) -> dict[str, str]:
    """The paper's choice of split and year, for data that has splits and years.

    Other data (a folder with a CSV, digit scenes) is taken as it is.
    """
    path = Path(data)
    if path.exists() and not (voc_years(path) or coco_files(path)):
        return {} if split is None else {"split": split}
    if data.partition(":")[0] == "digits":
        return {} if split is None else {"split": split}
    return dict(photos.options) | ({} if split is None else {"split": split})
