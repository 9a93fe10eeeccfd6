"""`patchdemux audit`: an attempt to falsify a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from patchdemux.audit import Audit
from patchdemux.audit import audit as audit_run
from patchdemux.cli.app import app
from patchdemux.cli.attack import FALSIFIED
from patchdemux.cli.evaluate import Data, DataOptions
from patchdemux.cli.images import Threshold
from patchdemux.cli.options import Json, ModelOptions, grouped, print_json
from patchdemux.cli.reading import AllowIncomplete, RunPath
from patchdemux.demux import PatchDemux
from patchdemux.runs import Run

SHOWN = 20
"""Findings of one kind that are printed; JSON has all."""


@app.command()
@grouped
def audit(
    run: RunPath,
    data: Data,
    model: ModelOptions,
    source: DataOptions,
    runtime: Annotated[
        str | None, typer.Option(help="What runs the model. Else that of the run.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Else that of the run.")] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Images that are computed again and attacked.")
    ] = 8,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Time for attacks. Else 60, with --long 3600.")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="All images, many sizes of batches: for a night.")
    ] = False,
    threshold: Threshold = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for patches that break a certificate.")] = Path(
        "falsified"
    ),
    allow_incomplete: AllowIncomplete = False,
    json: Json = False,
) -> None:
    """Try to falsify a run: its regions, its stored numbers, and its certificates by attacks.

    Give the data and the model as to `patchdemux evaluate`. Everything that is broken is one line, with
    image, class, region, and the patch; the exit code is then 3. A run that passes is not thereby
    proved: what was tried is told.

    `patchdemux audit runs/digits digits:50`

    `patchdemux audit runs/mine photos/ --model my_models:street --seconds 600`
    """
    opened = Run.open(run, allow_incomplete=allow_incomplete)
    classifier, dataset = source.open(data, model)
    demux = PatchDemux.from_run(
        opened, classifier, runtime=runtime, precision=precision, allow_mismatch=True
    )
    result = audit_run(
        opened,
        demux,
        dataset,
        sample=sample,
        seconds=seconds,
        long=long,
        threshold=threshold,
        seed=seed,
        folder=out,
        say=lambda text: typer.echo(text, err=True),
    )
    if json:
        print_json(result.as_json())
    else:
        tell(result)
    if not result.passed:
        raise typer.Exit(FALSIFIED)


def tell(result: Audit) -> None:
    """The findings, one on each line, or that there are none; and what was tried."""
    kinds: Counter[str] = Counter()
    for finding in result.findings:
        kinds[finding.kind] += 1
        if kinds[finding.kind] <= SHOWN:
            typer.echo(f"BROKEN {finding}")
    for kind, count in kinds.items():
        if count > SHOWN:
            typer.echo(f"BROKEN {kind}: and {count - SHOWN:,} more, which --json shows")
    if result.passed:
        typer.echo("nothing broken was found. This is no proof; what was tried:")
    else:
        typer.echo("what was tried:")
    for words in result.tried:
        typer.echo(f"  {words}")
