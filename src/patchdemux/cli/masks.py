"""`patchdemux masks`: what a mask set hides, and what it covers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from patchdemux.cli.app import app
from patchdemux.cli.images import footprint_on, footprint_setting
from patchdemux.cli.options import (
    Filter,
    Json,
    Masks,
    Resize,
    ThreatOptions,
    grouped,
    notes_to,
    print_json,
    tell,
)
from patchdemux.cli.words import as_pair, as_threat
from patchdemux.data.decode import decode, read_bytes
from patchdemux.data.preprocess import Preprocessing, read_image
from patchdemux.defenses import DoubleMasking
from patchdemux.masks import MaskSet
from patchdemux.report.drawings import draw_masks
from patchdemux.runs.store import SIDES
from patchdemux.threat import PatchThreat

BLANK = (448, 448)  # a canvas without a photo and without a size: the paper's


@app.command("masks")
@grouped
def show_masks(
    against: ThreatOptions,
    image: Annotated[
        Path | None, typer.Argument(help="A photo to draw on; else a blank canvas.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="The model's input, 224 or 224x320. Else the photo's own.")
    ] = None,
    resize: Resize = "squash",
    filter: Filter = "bilinear",
    masks: Masks = "6",
    covers: Annotated[
        str | None, typer.Option(help="Do these masks cover this patch too? If not, exit code 1.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The picture.")] = Path("masks.png"),
    json: Json = False,
) -> None:
    """Draw the masks that cover a patch, list them, and check whether they cover another patch.

    `patchdemux masks street.jpg --size 224 --patch 2% --masks 6`

    `patchdemux masks --size 224 --patch 32px --covers 24x40px`

    `patchdemux masks street.jpg --size 224 --patch 64px@source`
    """
    canvas = BLANK if size is None else as_pair("--size", size)
    photo = None
    if image is not None:
        if size is None:
            width, height = decode(read_bytes(image), str(image), fill=0, exif_rotation=False).size
            canvas = height, width
        preprocessing = Preprocessing(canvas, resize, filter)
        photo = read_image(image, preprocessing)
    source, footprint = against.source_patch, None
    if source is not None and image is not None:
        footprint = footprint_on([image], preprocessing, source)
    threat = against.threat(canvas, footprint)
    defense = DoubleMasking(as_pair("--masks", masks))
    mask_set = defense.mask_set(canvas, threat)
    other = None if covers is None else as_threat(covers, canvas, "--covers")
    problem = None if other is None else uncovered(mask_set, other)
    output.parent.mkdir(parents=True, exist_ok=True)
    draw_masks(output, mask_set, photo)
    if json:
        answer = {} if other is None else {"covers": problem is None, "problem": problem}
        boxes = [dict(zip(SIDES, box, strict=True)) for box in mask_set.boxes.tolist()]
        setting = {
            "image_size": canvas,
            "patch": threat.settings,
            **footprint_setting(footprint),
            "masks": len(mask_set),
        }
        print_json({**setting, "picture": str(output), **answer, "boxes": boxes})
        raise typer.Exit(0 if problem is None else 1)
    notes = notes_to(json)
    how = defense.in_words(canvas, threat)
    tell(against.patch, threat, canvas, how, notes, footprint)
    say = partial(notes.print, highlight=False, markup=False, soft_wrap=True)
    tops, lefts = (np.unique(mask_set.boxes[:, side]).tolist() for side in (0, 1))
    say(f"they begin at the rows {tops} and the columns {lefts}")
    say(f"{defense.views(canvas, threat):,} forward passes per image")
    say(f"picture: {output.resolve()}")
    if problem is not None:
        raise ValueError(problem)
    if other is not None:
        say(f"they cover every {other} as well")


def uncovered(masks: MaskSet, threat: PatchThreat) -> str | None:
    """Why the masks do not cover another patch; None if they do."""
    try:
        MaskSet(masks.image_size, threat, masks.boxes)
    except ValueError as error:
        return str(error)
    return None
