"""`patchdemux margin`: how much batches change scores."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from patchdemux.cli.app import app
from patchdemux.cli.evaluate import Data, DataOptions
from patchdemux.cli.options import (
    DefenseOptions,
    Json,
    ModelOptions,
    RuntimeOptions,
    grouped,
    notes_to,
    print_json,
)
from patchdemux.footprint import Footprint
from patchdemux.margin import BATCH_SIZES, IMAGES, measure_margin
from patchdemux.runs.images import read_chunk
from patchdemux.runs.measure import repeatable


@app.command()
@grouped
def margin(
    data: Data,
    model: ModelOptions,
    source: DataOptions,
    defense: DefenseOptions,
    runtime: RuntimeOptions,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Views per call of the model, tried beside others.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure how much the batch changes a score; certificates within that of a threshold are void.

    `patchdemux evaluate` measures it too, on its first images, and stores it with the run.

    `patchdemux margin digits:4 --masks 3`

    `patchdemux margin photos/ --model my_models:street --runtime openvino --precision bfloat16`
    """
    classifier, dataset = source.open(data, model)
    images = read_chunk(dataset, range(min(len(dataset), IMAGES)))
    notes = notes_to(json)
    classifier = runtime.apply(classifier, lambda: images[0], notes)
    footprint = defense.footprint(partial(Footprint.in_set, dataset=dataset))
    demux, _ = defense.defend(classifier, dataset.image_size, footprint)
    sizes = None if batch_size is None else (*BATCH_SIZES, batch_size)
    with repeatable():
        measured = measure_margin(demux, images, batch_sizes=sizes)
    if json:
        print_json(asdict(measured))
    else:
        notes.print(f"the margin is {measured}", highlight=False, soft_wrap=True)
