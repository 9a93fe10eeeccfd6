"""`patchdemux verify`: a certificate, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from patchdemux.cli.app import EXPECTED, app
from patchdemux.cli.options import Json, ModelOptions, print_json
from patchdemux.data.decode import read_bytes
from patchdemux.data.preprocess import Preprocessing
from patchdemux.document import elsewhere, false_claims, mismatches, prepare, read
from patchdemux.runs.measure import repeatable
from patchdemux.runtimes import make_runtime

CONFIRMED, REFUTED, UNKNOWN = 0, 1, 2


@app.command()
def verify(
    certificate: Annotated[Path, typer.Argument(help="What `certify --certificate` wrote.")],
    image: Annotated[Path, typer.Argument(help="The photo that it is about.")],
    model: Annotated[
        str | None, typer.Option(help="Else the one that the certificate names.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Of the model, as for `certify`.")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:1.")] = None,
    runtime: Annotated[str | None, typer.Option(help="Else the one of the certificate.")] = None,
    precision: Annotated[str | None, typer.Option(help="Else that of the certificate.")] = None,
    json: Json = False,
) -> None:
    """Compute a certificate again, and confirm or refute it.

    It is confirmed if it was not changed, is about this photo, model, runtime and precision, and
    every claim of it holds in bounds that are computed anew. Exit code 0: confirmed; 1: refuted, with
    reasons; 2: it could not be checked.

    `patchdemux verify street.json street.jpg`
    """
    try:
        problems, notes = checked(certificate, image, model, weights, device, runtime, precision)
    except (*EXPECTED, KeyError) as error:
        typer.secho(f"could not be checked: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(UNKNOWN) from error
    if json:
        print_json({"confirmed": not problems, "problems": problems, "notes": notes})
    else:
        for note in notes:
            typer.echo(f"note: computed elsewhere: {note}")
        for problem in problems:
            typer.echo(f"refuted: {problem}")
        if not problems:
            typer.echo(f"confirmed: every claim of {certificate} holds for {image}")
    raise typer.Exit(REFUTED if problems else CONFIRMED)


def checked(
    certificate: Path,
    image: Path,
    model: str | None,
    weights: Path | None,
    device: str | None,
    runtime: str | None,
    precision: str | None,
) -> tuple[list[str], list[str]]:
    """What refutes the certificate, and what differs without refuting it."""
    document = read(certificate.read_text("utf-8"), str(certificate))
    photo = read_bytes(image)
    preprocessing = Preprocessing(**document["preprocessing"])
    height, width = preprocessing.image_size
    named = ModelOptions(
        model or document["model_name"], weights, device=device, size=f"{height}x{width}"
    )
    margin = document["margin"]
    classifier = make_runtime(
        named.open(tuple(document["class_names"])),
        runtime or margin["runtime"],
        precision or margin["precision"],
    )
    problems = mismatches(document, photo, str(image), classifier)
    if not problems:  # else another function would be measured against these claims
        pixels = preprocessing(photo, str(image))
        with repeatable(), torch.inference_mode():
            problems = false_claims(document, prepare(document, classifier), pixels)
    return problems, elsewhere(document, classifier)
