"""`patchdemux certify` and `patchdemux predict`: photos of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from patchdemux.cli.app import app
from patchdemux.cli.options import (
    DefenseOptions,
    Json,
    ModelOptions,
    RuntimeOptions,
    Yes,
    agree,
    grouped,
    notes_to,
    print_json,
    progress_console,
    tell_defense,
)
from patchdemux.data.base import ImageError
from patchdemux.data.decode import read_bytes
from patchdemux.data.preprocess import Preprocessing, read_image
from patchdemux.data.sizes import sizes_of
from patchdemux.demux import PatchDemux
from patchdemux.document import as_document, class_names, issue
from patchdemux.engine import Progress
from patchdemux.footprint import Footprint, SourcePatch
from patchdemux.inputs import logit
from patchdemux.margin import measure_margin
from patchdemux.masks import MaskSet
from patchdemux.report.drawings import draw_labels
from patchdemux.report.gallery import pick
from patchdemux.report.heatmaps import probability
from patchdemux.report.labels import Label, labels_of, overlay_of, worth_a_look

DEFAULT_MODEL = "coco"

Images = Annotated[list[Path], typer.Argument(help="Photos.")]
Threshold = Annotated[
    float, typer.Option(help="A label is predicted where its probability is above this.")
]


@app.command("certify")
@grouped
def certify_photos(
    images: Images,
    model: ModelOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    threshold: Threshold = 0.5,
    output: Annotated[
        Path | None, typer.Option(help="Folder for a picture of every photo, with heat maps.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="Write a certificate for every photo, which `patchdemux verify` checks: a .json file "
            "for one photo, else a folder."
        ),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Name what photos show, and which of these labels no patch can change.

    A label is certified if it stays predicted, or absent, whatever a patch that is put on this photo
    shows and wherever it is. Every bound is moved outward by the numerical margin, measured on the
    first photos. Whether a photo holds a patch already, no certificate can tell.

    Without --model, the labels are those of the shipped COCO classifier.

    `patchdemux certify street.jpg --output maps`

    `patchdemux certify street.jpg --model my_models:street --patch 32px`
    """
    logit(threshold)
    pictures = files_for(images, output, "-certificate.png")
    documents = certificate_files(images, certificate)
    notes = notes_to(json)
    demux, pixels, masks, footprint = open_photos(images, model, defense, runtime, notes)
    agree(demux, len(images), yes)
    with photos_bar() as demux.engine.progress:
        bounds = demux.bounds(pixels)
    margin = measure_margin(demux, pixels)
    notes.print(f"every bound is moved outward by the margin: {margin}", soft_wrap=True)
    for i, file in enumerate(documents):
        if file is not None:
            issued = issue(
                demux,
                read_bytes(images[i]),
                str(images[i]),
                model.preprocessing(demux.classifier),
                pick(bounds, [i]),
                margin,
                threshold,
                footprint=footprint,
                model_name=model.model or DEFAULT_MODEL,
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(as_document(issued), "utf-8")
    bounds = bounds.widened(margin.value)
    names = class_names(demux, bounds.defended.shape[1])
    found = [labels_of(bounds, masks, i, names, logit(threshold)) for i in range(len(images))]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    for i, (labels, picture) in enumerate(zip(found, pictures, strict=True)):
        if picture is not None:
            overlay = partial(overlay_of, bounds, masks, i, logit(threshold))
            draw_labels(picture, pixels[i], labels, overlay)
        if not json:
            tell_labels(images[i], labels, picture)
            if (file := documents[i]) is not None:
                typer.echo(f"  certificate: {file.resolve()}")
    if json:
        print_json(
            {
                **setting_of(demux, masks, threshold, footprint),
                "images": [
                    {
                        "file": str(image),
                        "picture": None if picture is None else str(picture),
                        "certificate": None if file is None else str(file),
                        "labels": [asdict(label) for label in labels],
                    }
                    for image, labels, picture, file in zip(
                        images, found, pictures, documents, strict=True
                    )
                ],
            }
        )


@app.command("predict")
@grouped
def predict_photos(
    images: Images,
    model: ModelOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    threshold: Threshold = 0.5,
    max_views: Annotated[
        int | None,
        typer.Option(min=1, help="Forward passes per photo; labels that take more are undecided."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Name what photos show, with the defended classifier: of COCO, if no --model is given.

    Only what decides the labels is run: far fewer forward passes than a certificate takes.

    `patchdemux predict street.jpg --threshold 0.8`
    """
    logit(threshold)
    demux, pixels, masks, footprint = open_photos(images, model, defense, runtime, progress_console)
    if max_views is None:
        agree(demux, len(images), yes)
    with photos_bar() as demux.engine.progress:
        decision = demux.decide(pixels, threshold, max_views)
    names = class_names(demux, decision.labels.shape[1])
    answers = []
    for i, image in enumerate(images):
        order = np.argsort(-decision.lower[i], kind="stable")
        predicted = [names[c] for c in order if decision.labels[i, c]]
        undecided = [names[c] for c in order if not decision.decided[i, c]]
        low, high = (
            dict(zip(names, probability(ends[i]).tolist(), strict=True))
            for ends in (decision.lower, decision.upper)
        )
        views = None if decision.views is None else int(decision.views[i])
        answers.append(
            {
                "file": str(image),
                "labels": predicted,
                "undecided": undecided,
                "probability_at_least": low,
                "probability_at_most": high,
                "views": views,
            }
        )
        if not json:
            words = ", ".join(f"{name} (at least {low[name]:.1%})" for name in predicted)
            rest = f"; undecided: {', '.join(undecided)}" if undecided else ""
            passes = "" if views is None else f"; {views} forward passes"
            typer.echo(f"{image}: {words or 'no label'}{rest}{passes}")
    if json:
        print_json({**setting_of(demux, masks, threshold, footprint), "images": answers})


def open_photos(
    images: Sequence[Path],
    model: ModelOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    notes: Console,
) -> tuple[PatchDemux, Tensor, MaskSet | None, Footprint | None]:
    """The defended classifier, the photos as it sees them, its regions, where they are boxes, and what
    a patch reaches."""
    model = replace(model, model=model.model or DEFAULT_MODEL)
    classifier = model.open(model.class_names)
    preprocessing = model.preprocessing(classifier)
    pixels = torch.stack(read_photos(images, preprocessing))
    classifier = runtime.apply(classifier, lambda: pixels[0], notes)
    footprint = defense.footprint(partial(footprint_on, images, preprocessing))
    demux, masks = defense.defend(classifier, preprocessing.image_size, footprint)
    tell_defense(defense.patch, demux, notes, footprint)
    return demux, pixels, masks, footprint


def footprint_on(
    images: Sequence[Path], preprocessing: Preprocessing, patch: SourcePatch
) -> Footprint:
    """What a patch on any of these photos reaches."""
    return Footprint.of(patch, sizes_of(images, preprocessing), preprocessing)


def read_photos(images: Sequence[Path], preprocessing: Preprocessing) -> list[Tensor]:
    """All photos, or an error that names every one that cannot be read."""
    pixels, problems = [], []
    for image in images:
        try:
            pixels.append(read_image(image, preprocessing))
        except ImageError as error:
            problems.append(str(error))
    if problems:
        raise ImageError("; ".join(problems))
    return pixels


def tell_labels(image: Path, labels: Sequence[Label], picture: Path | None) -> None:
    """The labels worth a line: predicted, or not certified."""
    typer.echo(f"{image}")
    shown = worth_a_look(labels)
    width = max((len(label.name) for label in shown), default=0)
    for label in shown:
        typer.echo(f"  {label.name:<{width}}  {label.probability:6.1%}  {label.verdict}")
    if rest := len(labels) - len(shown):
        others = "other labels are" if rest > 1 else "other label is"
        typer.echo(f"  {rest} {others} absent, certified: no patch can fake them")
    if picture is not None:
        typer.echo(f"  picture: {picture.resolve()}")


def certificate_files(images: Sequence[Path], wanted: Path | None) -> list[Path | None]:
    """A file for the certificate of every photo: the one that was named, or some in that folder."""
    if wanted is None or wanted.suffix.lower() != ".json":
        return files_for(images, wanted, ".json")
    if len(images) > 1:
        raise ValueError(
            f"--certificate {wanted} is one file for {len(images)} photos: name a folder"
        )
    return [wanted]


def files_for(images: Sequence[Path], output: Path | None, ending: str) -> list[Path | None]:
    """A file for every photo, named as it; photos of the same name get a number."""
    if output is None:
        return [None] * len(images)
    seen: Counter[str] = Counter()
    files: list[Path | None] = []
    for image in images:
        seen[image.stem] += 1
        number = f"-{seen[image.stem]}" if seen[image.stem] > 1 else ""
        files.append(output / f"{image.stem}{number}{ending}")
    return files


def footprint_setting(footprint: Footprint | None) -> dict[str, Any]:
    """What a patch on the photo reaches, in an answer for programs."""
    return {} if footprint is None else {"footprint": asdict(footprint)}


def setting_of(
    demux: PatchDemux, masks: MaskSet | None, threshold: float, footprint: Footprint | None
) -> dict[str, Any]:
    """What an answer for programs begins with."""
    return {
        "image_size": list(demux.image_size or ()),
        "patch": demux.threat.settings,
        **footprint_setting(footprint),
        "defense": repr(demux.defense),
        "masks": None if masks is None else len(masks),
        "threshold": threshold,
    }


@contextmanager
def photos_bar() -> Iterator[Progress]:
    """A progress bar over masked views, beside what is printed for scripts."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = not progress_console.is_terminal
    rest = TimeRemainingColumn()
    with Bar(*columns, rest, console=progress_console, disable=hidden) as bar:
        task = bar.add_task("forward passes", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
