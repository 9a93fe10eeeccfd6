"""From a run back to the defended classifier that it certified."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from patchdemux.classifier import Classifier
from patchdemux.defenses import Defense, make_defense
from patchdemux.defenses.registry import name_of
from patchdemux.demux import PatchDemux
from patchdemux.engine import Progress
from patchdemux.margin import Margin
from patchdemux.runs.errors import RunError
from patchdemux.runs.fingerprint import classifier_fields, differences
from patchdemux.runs.run import Run

OF_THE_MODEL = ("model", "architecture", "weights", "mean", "std")
OF_THE_MACHINE = ("runtime", "precision", "device", "torch")


OLD_NAMES = {"DoubleMasking": "double-masking"}
"""Of runs that were begun before defenses had names."""


def defense_record(defense: Defense) -> dict[str, Any] | None:
    """A registered defense as JSON values, to make it again; None if it cannot be made from such."""
    name = name_of(defense)
    try:
        fields = json.loads(json.dumps(asdict(defense)))  # type: ignore[call-overload]
    except TypeError:
        return None
    return None if name is None else {"name": name, "fields": fields}


def recorded_defense(record: Mapping[str, Any] | None) -> Defense:
    """The defense that `defense_record` recorded; an error with the reason if it cannot be made."""
    if record is None:
        raise ValueError("its class has no registered name")
    return make_defense(OLD_NAMES.get(record["name"], record["name"]), record["fields"])


def rebuild(
    run: Run | str | os.PathLike[str],
    model: Callable[[Tensor], Tensor],
    *,
    defense: Defense | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    allow_mismatch: bool = False,
    progress: Progress | None = None,
) -> PatchDemux:
    """See `PatchDemux.from_run`."""
    if not isinstance(run, Run):
        run = Run.open(Path(run), allow_incomplete=True)
    stored = run.attributes
    recorded: Mapping[str, str] = stored.get("runtime") or {}
    demux = PatchDemux(
        _classifier(run, model),
        run.threat,
        _defense(run) if defense is None else defense,
        stored["image_size"],
        stored["fill"],
        batch_size=stored["batch_size"],
        progress=progress,
        runtime=runtime or recorded.get("name"),
        precision=precision or recorded.get("precision"),
    )
    if repr(demux.defense) != run.defense:
        raise RunError(f"the run at {run.path} certified {run.defense}, not {demux.defense!r}")
    now = json.loads(json.dumps(classifier_fields(demux.classifier)))
    if changed := _changed(run, now, OF_THE_MODEL):
        raise RunError(f"the run at {run.path} certified another model: {changed}")
    changed = _changed(run, now, OF_THE_MACHINE)
    if changed and not allow_mismatch:
        raise RunError(
            f"the run at {run.path} certified another function: {changed}. Its certificates do not "
            f"hold for this one to the last bit; allow_mismatch=True uses it all the same"
        )
    if not changed and stored.get("margin") is not None:
        measured = stored["margin"]
        demux.margin = Margin(**{**measured, "batch_sizes": tuple(measured["batch_sizes"])})
    return demux


def _changed(run: Run, now: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Those of the fields that differ from the run's, in words."""
    old, new = ({name: fields.get(name) for name in names} for fields in (run.fingerprint, now))
    return "; ".join(differences(old, new))


def _classifier(run: Run, model: Callable[[Tensor], Tensor]) -> Classifier:
    """The classifier that was given, or one around the model with the run's normalisation."""
    if isinstance(model, Classifier):
        return model
    mean, std = run.fingerprint["mean"], run.fingerprint["std"]
    plain = (mean, std) == ([0.0], [1.0])
    return Classifier(
        model,
        class_names=run.class_names,
        mean=None if plain else mean,
        std=None if plain else std,
    )


def _defense(run: Run) -> Defense:
    """The run's defense, made from its recorded name and settings."""
    try:
        defense = recorded_defense(run.attributes.get("defense_fields"))
        if repr(defense) == run.defense:
            return defense
        why = f"they make {defense!r}"
    except (ValueError, ImportError) as error:
        why = str(error)
    raise RunError(
        f"the defense of the run at {run.path} is not one that can be made from what was recorded "
        f"({why}); give it: from_run(run, model, defense=...), where it was {run.defense}"
    )
