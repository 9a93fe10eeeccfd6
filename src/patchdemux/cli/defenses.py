"""`patchdemux defenses`: what there is to defend with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Annotated

import typer

from patchdemux.cli.app import app
from patchdemux.cli.options import Json, ThreatOptions, grouped, notes_to, print_json
from patchdemux.cli.words import as_pair
from patchdemux.defenses.registry import available, defense_class, make_defense
from patchdemux.threat import PatchThreat


@dataclass(frozen=True)
class Listed:
    """A defense in the list.

    Attributes:
        views: per image with the settings as they are by default; None where it does not tell.
        problem: why it cannot be used, or not against this threat; empty if it can.
    """

    name: str
    place: str
    threat: str = ""
    views: int | None = None
    needs: str = ""
    settings: tuple[str, ...] = ()
    problem: str = ""


@app.command("defenses")
@grouped
def list_defenses(
    against: ThreatOptions,
    size: Annotated[
        str, typer.Option(help="The model's input, 224 or 224x320 (height x width).")
    ] = "448",
    json: Json = False,
) -> None:
    """List the defenses: what they prove, what they need, and what they cost for a patch.

    `patchdemux defenses --size 224 --patch 2%`
    """
    image_size = as_pair("--size", size)
    threat = against.threat(image_size)
    found = [listed(name, image_size, threat) for name in available()]
    if json:
        print_json([asdict(one) for one in found])
        return
    say = partial(notes_to(json).print, highlight=False, markup=False, soft_wrap=True)
    say(f"against a {threat} on images of {image_size[0]} x {image_size[1]} pixels:")
    for one in found:
        views = "views are not told" if one.views is None else f"{one.views:,} views per image"
        say(f"\n{one.name}")
        lines = [f"proves {one.threat}", one.problem or views, f"needs {one.needs}"]
        settings = ", ".join(one.settings) or "none"
        lines = [*lines, f"settings (--set): {settings}"] if one.threat else [one.problem]
        for line in [*lines, one.place]:
            say(f"  {line}")


def listed(name: str, image_size: tuple[int, int], threat: PatchThreat) -> Listed:
    """What is known of a defense; one that cannot be imported or made is listed with the reason."""
    place = available()[name]
    try:
        kind = defense_class(name)
    except (ImportError, ValueError) as error:
        return Listed(name, place, problem=str(error))
    settings = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    known = Listed(name, place, kind.threat_in_words, None, kind.needs, settings)
    if kind.most_patches is not None and threat.count > kind.most_patches:
        return replace(known, problem=f"proves at most {kind.most_patches}")
    try:
        return replace(known, views=make_defense(name).views(image_size, threat))
    except ValueError as error:
        return replace(known, problem=str(error))
