"""A certificate for one photo as a document: written with all that it depends on, and checked again.

The document claims, for every class, an interval that the defended score of this photo stays in,
whatever a patch of the threat shows. Whoever has the photo and the model computes the bounds again:
a claim that is wider than these is confirmed, one that is narrower is refuted.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

import patchdemux
from patchdemux.bounds import ScoreBounds
from patchdemux.classifier import Classifier
from patchdemux.data.decode import photo_size
from patchdemux.data.files import sha256
from patchdemux.data.preprocess import Preprocessing
from patchdemux.demux import PatchDemux
from patchdemux.footprint import Footprint
from patchdemux.inputs import logit
from patchdemux.margin import Margin
from patchdemux.runs.fingerprint import classifier_fields, differences
from patchdemux.runs.rebuild import OF_THE_MACHINE, OF_THE_MODEL, defense_record, recorded_defense
from patchdemux.threat import PatchThreat

FORMAT = "patchdemux certificate 1"
MUST_BE_THE_SAME = (*OF_THE_MODEL, "runtime", "precision")

Document = dict[str, Any]


def issue(
    demux: PatchDemux,
    photo: bytes,
    name: str,
    preprocessing: Preprocessing,
    bounds: ScoreBounds,
    margin: Margin,
    threshold: float,
    *,
    footprint: Footprint | None = None,
    model_name: str | None = None,
) -> Document:
    """The certificate of one photo, as plain JSON values.

    Args:
        demux: the defended classifier.
        photo: the photo's file, as bytes.
        name: of the photo.
        preprocessing: how it became the classifier's input.
        bounds: of this photo alone, as they were computed.
        margin: by which every claim is moved outward.
        threshold: a probability; a label is predicted where its own is above.
        footprint: the patch on the photo that the threat stands for.
        model_name: the name that `load_model` knows the model by.
    """
    names = class_names(demux, bounds.defended.shape[1])
    lower = bounds.lower[0].min(axis=0).astype(float) - margin.value
    upper = bounds.upper[0].max(axis=0).astype(float) + margin.value
    at = logit(threshold)
    defended = bounds.defended[0].astype(float)
    predicted = defended > at
    safe = np.where(predicted, lower > at, upper <= at)
    height, width = photo_size(photo, name, exif_rotation=preprocessing.exif_rotation)
    document: Document = {
        "format": FORMAT,
        "statement": statement(demux.threat, footprint, threshold),
        "image": {"name": name, "sha256": sha256(photo), "height": height, "width": width},
        "preprocessing": preprocessing.description,
        "threat": demux.threat.settings,
        "footprint": None if footprint is None else asdict(footprint),
        "defense": defense_record(demux.defense),
        "fill": demux.engine.fill,
        "batch_size": demux.engine.batch.size,
        "model_name": model_name,
        "function": classifier_fields(demux.classifier),
        "class_names": list(names),
        "threshold": threshold,
        "margin": asdict(margin),
        "labels": [
            {
                "name": names[c],
                "predicted": bool(predicted[c]),
                "certified": bool(safe[c]),
                "score": float(defended[c]),
                "at_least": finite(lower[c]),
                "at_most": finite(upper[c]),
            }
            for c in range(len(names))
        ],
        "versions": {
            "patchdemux": patchdemux.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "issued": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    plain: Document = json.loads(json.dumps(document, allow_nan=False))
    return {**plain, "sha256": digest(plain)}


def statement(threat: PatchThreat, footprint: Footprint | None, threshold: float) -> str:
    """What a certified label means, in words."""
    patch = f"{threat} of the model's input" if footprint is None else str(footprint)
    return (
        f"Every label that is certified here stays as it is, predicted or not, at the threshold "
        f"{threshold}, whatever is shown by one {patch}, at any place; for this photo, this model and "
        f"this runtime and precision. The scores are logits, moved outward by the margin."
    )


def prepare(document: Document, classifier: Classifier) -> PatchDemux:
    """The defended classifier that the document is about, around this model."""
    return PatchDemux(
        classifier,
        PatchThreat(**document["threat"]),
        recorded_defense(document["defense"]),
        document["preprocessing"]["size"],
        document["fill"],
        batch_size=document["batch_size"],
    )


def mismatches(document: Document, photo: bytes, name: str, classifier: Classifier) -> list[str]:
    """Why the document is not about this photo and this function; or was changed since it was made."""
    found = []
    if document.get("sha256") != digest(document):
        found.append("the certificate was changed after it was issued: its sum does not fit it")
    if document["image"]["sha256"] != sha256(photo):
        found.append(f"{name} is not the photo of the certificate: its bytes differ")
    footprint = document["footprint"] and Footprint.from_record(document["footprint"])
    threat = PatchThreat(**document["threat"])
    if document["statement"] != statement(threat, footprint, document["threshold"]):
        found.append("its statement in words is not what its fields say")
    now = json.loads(json.dumps(classifier_fields(classifier)))
    old, new = (only(fields, MUST_BE_THE_SAME) for fields in (document["function"], now))
    if changed := differences(old, new):
        found.append(f"it is about another function: {'; '.join(changed)}")
    if footprint:
        how = Preprocessing(**document["preprocessing"])
        size = photo_size(photo, name, exif_rotation=how.exif_rotation)
        needed = Footprint.of(footprint.patch, [size], how).threat
        if needed.height > threat.height or needed.width > threat.width:
            found.append(f"on this photo, a {footprint.patch} needs a {needed}, not a {threat}")
    return found


def elsewhere(document: Document, classifier: Classifier) -> list[str]:
    """What differs in machine and versions, which changes the last bits of a score."""
    names = [name for name in OF_THE_MACHINE if name not in MUST_BE_THE_SAME]
    now = json.loads(json.dumps(classifier_fields(classifier)))
    return differences(only(document["function"], names), only(now, names))


def false_claims(document: Document, demux: PatchDemux, pixels: Tensor) -> list[str]:
    """The claims that bounds computed again do not confirm."""
    bounds = demux.bounds(pixels[None])
    lower, upper = bounds.lower[0].min(axis=0), bounds.upper[0].max(axis=0)
    at = logit(document["threshold"])
    if len(lower) != len(document["labels"]):
        return [f"it has {len(document['labels'])} labels, but the model has {len(lower)} classes"]
    found = []
    for c, label in enumerate(document["labels"]):
        claim, name = f"label {label['name']!r}: ", label["name"]
        least, most = (
            infinite if value is None else value
            for value, infinite in ((label["at_least"], -np.inf), (label["at_most"], np.inf))
        )
        if lower[c] < least:
            found.append(f"{claim}a score of at least {least:.6g} is claimed, not {lower[c]:.6g}")
        if upper[c] > most:
            found.append(f"{claim}a score of at most {most:.6g} is claimed, not {upper[c]:.6g}")
        if name != document["class_names"][c]:
            found.append(f"{claim}the class of this place is {document['class_names'][c]!r}")
        if not least <= label["score"] <= most:
            found.append(f"{claim}its score {label['score']:.6g} lies outside of its own bounds")
        if label["certified"] and (bounds.defended[0, c] > at) != label["predicted"]:
            found.append(f"{claim}it is {'not ' * label['predicted']}predicted")
        if label["certified"] and not (least > at if label["predicted"] else most <= at):
            found.append(f"{claim}it is said to be certified, but its bounds allow to turn it")
    return found


def class_names(demux: PatchDemux, classes: int) -> tuple[str, ...]:
    """The classifier's, or numbers."""
    return demux.classifier.class_names or tuple(f"class {c}" for c in range(classes))


def read(content: str, name: str) -> Document:
    """A document, or an error that says that it is none."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON, or damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{name} is not a certificate of the format {FORMAT!r}")
    return document


def as_document(document: Document) -> str:
    """The text of a document's file."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def digest(document: Mapping[str, Any]) -> str:
    """A sum over all of a document but the sum itself. It shows changes, but it is no signature."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def finite(value: float) -> float | None:
    """JSON knows no infinity; None where nothing is claimed."""
    return float(value) if np.isfinite(value) else None


def only(fields: Mapping[str, Any], names: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Those of the fields."""
    return {name: fields.get(name) for name in names}
