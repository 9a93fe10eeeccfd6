"""Options that several commands share, in groups, and what their values mean."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
import typer
from rich.console import Console
from torch import Tensor

from patchdemux.bounds import Center, Guard
from patchdemux.classifier import Classifier
from patchdemux.cli.app import console
from patchdemux.cli.words import (
    PATCH_FORMS,
    as_numbers,
    as_pair,
    as_setting,
    as_source_patch,
    as_threat,
)
from patchdemux.data.preprocess import FILTERS, MODES, Preprocessing
from patchdemux.defenses import make_defense
from patchdemux.demux import PatchDemux
from patchdemux.engine import Fill
from patchdemux.footprint import SAMPLING, Footprint, SourcePatch
from patchdemux.masks import MaskSet
from patchdemux.models.loading import FORMS, load_model, made_to_size
from patchdemux.runtimes import RUNTIMES, fastest, make_runtime
from patchdemux.threat import PatchThreat

progress_console = Console(stderr=True)

AUTO, ANY = "auto", "any"

MANY_VIEWS = 10_000
"""Forward passes per image above which a command wants to hear --yes."""

Patch = Annotated[str, typer.Option(help=f"The attacker's patch at most: {PATCH_FORMS}.")]
Masks = Annotated[str, typer.Option(help="6 for 6 rows and 6 columns of masks, or 6x4.")]
Jpeg = Annotated[
    str | None,
    typer.Option(
        help=f"Of a patch @source: it was there before the photo became a JPEG with this chroma "
        f"subsampling, {', '.join(SAMPLING)}."
    ),
]
Resize = Annotated[str, typer.Option(help=f"How photos get that size: {', '.join(MODES)}.")]
Filter = Annotated[str, typer.Option(help=f"How they are resampled: {', '.join(FILTERS)}.")]
Yes = Annotated[
    bool, typer.Option("--yes", help=f"Run even more than {MANY_VIEWS:,} forward passes per image.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how photos become its input."""

    model: Annotated[str | None, typer.Option(help=f"The classifier: {FORMS}.")] = None
    weights: Annotated[
        Path | None, typer.Option(help="Of the model: safetensors, or a PyTorch state dict.")
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(help="Class names in order: cat,dog or a text file with one on each line."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:1. Else a GPU if there is one.")
    ] = None
    size: Annotated[
        str | None,
        typer.Option(help="The model's input, 224 or 224x320 (height x width). Else as it says."),
    ] = None
    resize: Resize = "squash"
    filter: Filter = "bilinear"

    def open(self, class_names: tuple[str, ...] | None = None) -> Classifier:
        """The classifier on its device; modules in the current folder are in reach."""
        if self.model is None:
            raise ValueError(f"say with --model what to defend: {FORMS}")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        classifier = load_model(
            self.model, weights=self.weights, class_names=class_names, image_size=self.given_size
        )
        if self.is_made_to_size and self.weights is None:
            progress_console.print(f"note: without --weights, {self.model} is untrained")
        return classifier.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def is_made_to_size(self) -> bool:
        """Whether the model is made with an output per class, so that classes must be known."""
        return made_to_size(self.model or "")

    @property
    def given_size(self) -> tuple[int, int] | None:
        return None if self.size is None else as_pair("--size", self.size)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names from a list with commas, or from the lines of a file."""
        if self.classes is None:
            return None
        if Path(self.classes).is_file():
            lines = Path(self.classes).read_text("utf-8").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
        if "," not in self.classes:
            raise ValueError(f"--classes must be cat,dog or a text file, but got {self.classes!r}")
        return tuple(name.strip() for name in self.classes.split(","))

    def preprocessing(self, classifier: Classifier) -> Preprocessing:
        """How photos become this classifier's input."""
        image_size = self.given_size or classifier.image_size
        if image_size is None:
            raise ValueError(
                "this model does not say how large its input is: give --size, as 224 or 224x320"
            )
        return Preprocessing(image_size, self.resize, self.filter)


@dataclass(frozen=True)
class RuntimeOptions:
    """What runs the model, and in which numbers."""

    runtime: Annotated[
        str,
        typer.Option(
            help=f"What runs the model: {', '.join(RUNTIMES)}; auto, the fastest of them here; or "
            f"shared:LAYER, torch, with the features up to a layer shared by views of an image."
        ),
    ] = "torch"
    precision: Annotated[
        str,
        typer.Option(help="float32, bfloat16 or float16; or any, with --runtime auto."),
    ] = "float32"

    def apply(
        self, classifier: Classifier, image: Callable[[], Tensor], notes: Console
    ) -> Classifier:
        """The classifier as it is to be run; `auto` times runtimes on the image, and says so."""
        if self.runtime != AUTO:
            return make_runtime(classifier, self.runtime, self.precision)
        precision = None if self.precision == ANY else self.precision
        found = fastest(classifier, image(), precision=precision)
        notes.print(f"the fastest is {found}", highlight=False, markup=False, soft_wrap=True)
        return found.classifier


@dataclass(frozen=True)
class ThreatOptions:
    """Against what."""

    patch: Patch = "2%"
    jpeg: Jpeg = None
    patches: Annotated[
        int, typer.Option(min=1, help="So many patches at once; costs grow fast with them.")
    ] = 1
    ratios: Annotated[
        str | None,
        typer.Option(
            help="All rectangles of at most the patch's area, with width / height in a range, as "
            "0.5-2."
        ),
    ] = None

    def footprint(self, find: Callable[[SourcePatch], Footprint]) -> Footprint | None:
        """What a patch on the photos reaches, once it is known on which; None if it is on the input."""
        patch = self.source_patch
        return None if patch is None else find(patch)

    @property
    def source_patch(self) -> SourcePatch | None:
        """The patch on the photo, if it is on the photo."""
        return as_source_patch(self.patch, self.jpeg)

    def threat(
        self, image_size: tuple[int, int], footprint: Footprint | None = None
    ) -> PatchThreat:
        """What the attacker may do to images of this size."""
        patch = footprint.threat if footprint else as_threat(self.patch, image_size)
        if self.ratios is not None and footprint:
            raise ValueError(
                f"--ratios is about a patch on the model's input, but {self.patch} is on the photo"
            )
        if self.ratios is None:
            return replace(patch, count=self.patches)
        found = re.fullmatch(r"([\d.]+)-([\d.]+)", self.ratios.replace(" ", ""))
        if found is None:
            raise ValueError(f"--ratios must be as 0.5-2 or 1-4, but got {self.ratios!r}")
        pixels, ratios = patch.height * patch.width, (float(found[1]), float(found[2]))
        return PatchThreat.rectangles(pixels, ratios, image_size, self.patches)


@dataclass(frozen=True)
class DefenseOptions(ThreatOptions):
    """Against what, and how."""

    defense: Annotated[
        str, typer.Option(help="How; `patchdemux defenses` lists what there is.")
    ] = "double-masking"
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the defense, as masks=[6,4]; may be repeated."),
    ] = None
    masks: Annotated[
        str | None,
        typer.Option(help="Setting of that name, as 6 for 6 rows and 6 columns, or 6x4. Else 6."),
    ] = None
    center: Annotated[
        Center | None,
        typer.Option(
            help="Setting of that name: the score where the bounds leave a choice, median (the "
            "paper) or undefended. Else median."
        ),
    ] = None
    guard: Annotated[
        Guard | None,
        typer.Option(
            help="Setting of that name: prove that nothing is hidden (recall), or invented "
            "(precision), or both. Else both."
        ),
    ] = None
    fill: Annotated[
        str,
        typer.Option(
            help="Hidden pixels, 0 to 1; one value per channel, as 0.5,0.4,0.4; or mean, that of "
            "the visible pixels."
        ),
    ] = "0"

    def defend(
        self,
        classifier: Classifier,
        image_size: tuple[int, int],
        footprint: Footprint | None = None,
    ) -> tuple[PatchDemux, MaskSet | None]:
        """The defended classifier, and its regions, where they are boxes."""
        threat = self.threat(image_size, footprint)
        defense = make_defense(self.defense, self.chosen())
        fill: Fill = "mean" if self.fill == "mean" else as_numbers("--fill", self.fill)
        demux = PatchDemux(classifier, threat, defense, image_size, fill)
        boxes = defense.region_boxes(image_size, threat)
        return demux, None if boxes is None else MaskSet(image_size, threat, boxes)

    def chosen(self) -> dict[str, Any]:
        """The settings of the defense that were given."""
        given = dict(as_setting(text) for text in self.settings or ())
        if self.masks is not None:
            given["masks"] = as_pair("--masks", self.masks)
        named = {"center": self.center, "guard": self.guard}
        return given | {name: value for name, value in named.items() if value is not None}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be groups: every field of a group becomes an option."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]

    def flat(**given: Any) -> None:
        for name, group in groups.items():
            own = {field.name: given.pop(field.name) for field in fields(group)}
            given[name] = group(**own)
        command(**given)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(flat)["__signature__"] = inspect.Signature(parameters)
    return flat


def tell(
    patch: str,
    threat: PatchThreat,
    image_size: Sequence[int],
    how: str,
    to: Console,
    footprint: Footprint | None = None,
) -> None:
    """What the options came to, in pixels."""
    height, width = image_size
    area = threat.count * max(h * w for h, w in threat.all_shapes) / (height * width)
    said = f"{patch} is a {footprint}\nthat" if footprint else patch
    to.print(
        f"{said} is a {threat}, {area:.2%} of the input of {height} x {width} pixels\n{how}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def tell_defense(
    patch: str, demux: PatchDemux, to: Console, footprint: Footprint | None = None
) -> None:
    """Against what a classifier is defended, and how."""
    assert demux.image_size is not None
    how = demux.defense.in_words(demux.image_size, demux.threat)
    tell(patch, demux.threat, demux.image_size, how, to, footprint)


def agree(demux: PatchDemux, images: int, yes: bool) -> None:
    """Nobody starts a run of very many forward passes by accident."""
    if (cost := many_views(demux, images)) and not yes:
        raise ValueError(f"this takes {cost}; say --yes to run it, or take fewer masks or patches")


def many_views(demux: PatchDemux, images: int) -> str:
    """The forward passes in words, if there are very many; else nothing."""
    assert demux.image_size is not None
    views = demux.defense.views(demux.image_size, demux.threat) or 0
    if views <= MANY_VIEWS:
        return ""
    return f"{views:,} forward passes per image, {views * images:,} in all"


def notes_to(json: bool) -> Console:
    """Where notes for people go: stdout belongs to the JSON, if there is any."""
    return progress_console if json else console


def print_json(answer: Any) -> None:
    """The answer for scripts."""
    typer.echo(json.dumps(answer, indent=2, allow_nan=False, ensure_ascii=False))
