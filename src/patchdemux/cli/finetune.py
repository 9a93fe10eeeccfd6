"""`patchdemux finetune`: teach a classifier to see past masks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from patchdemux.cli.app import app
from patchdemux.cli.evaluate import LOG_EVERY, Data, DataOptions
from patchdemux.cli.options import (
    Json,
    ModelOptions,
    grouped,
    notes_to,
    print_json,
    progress_console,
)
from patchdemux.models.loading import load_model, read_state
from patchdemux.runtimes import RUNTIMES
from patchdemux.training import finetune as run_finetuning
from patchdemux.training import with_classes
from patchdemux.training.finetune import SAVE_EVERY, Progress
from patchdemux.training.plan import planned
from patchdemux.training.processes import is_main_process
from patchdemux.training.recipe import Augment, Cutout, Optimizer, Precision, Recipe, Search


@dataclass(frozen=True)
class RecipeOptions:
    """`Recipe` as options."""

    cutout: Annotated[
        Cutout,
        typer.Option(
            help="What is hidden while it learns: the worst two masks (greedy), two squares at random "
            "places (random), several random pairs of masks, of which the worst counts for each label "
            "(views), or nothing (none: plain training)."
        ),
    ] = "greedy"
    masks: Annotated[
        str,
        typer.Option(
            help="Of greedy: 6 for 6 x 6 masks. 3,6 searches masks of both sizes from coarse to fine, "
            "at half the cost or less."
        ),
    ] = "6"
    search: Annotated[
        Search,
        typer.Option(
            help="Of greedy: in each step, or once for every image beforehand, in a file."
        ),
    ] = "each"
    search_runtime: Annotated[
        str,
        typer.Option(help=f"Of a search once: what runs the model, {', '.join(RUNTIMES)}."),
    ] = "torch"
    search_precision: Annotated[
        str, typer.Option(help="Of a search once: float32, bfloat16 or float16.")
    ] = "float32"
    views: Annotated[
        int, typer.Option(help="Of views: how many of each image, the whole image included.")
    ] = 4
    patch: Annotated[
        float, typer.Option(help="Share of the image that the masks are made for, 0.02 is 2%.")
    ] = 0.02
    largest: Annotated[float, typer.Option(help="Of random: the largest square, as a share.")] = (
        0.25
    )
    share: Annotated[float, typer.Option(help="Share of the images that get a cutout.")] = 1.0
    fill: Annotated[float, typer.Option(help="Gray of what is hidden, 0 to 1.")] = 0.0
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 5
    batch_size: Annotated[int, typer.Option(help="Images per step, over all processes.")] = 32
    rate: Annotated[float, typer.Option(help="Highest learning rate of the one cycle.")] = 5e-5
    warmup: Annotated[float, typer.Option(help="Share of the steps in which it rises.")] = 0.2
    optimizer: Annotated[Optimizer, typer.Option(help="What takes the steps.")] = "adam"
    weight_decay: Annotated[float, typer.Option(help="Of the optimizer.")] = 1e-4
    focus_positive: Annotated[
        float, typer.Option(help="Of the asymmetric loss: gamma of present labels.")
    ] = 0.0
    focus_negative: Annotated[float, typer.Option(help="Gamma of absent labels.")] = 4.0
    clip: Annotated[float, typer.Option(help="Probability that counts as none.")] = 0.05
    average: Annotated[
        float, typer.Option(help="Decay of the average of the weights (EMA); 0 for none.")
    ] = 0.999
    augment: Annotated[
        Augment,
        typer.Option(help="Images left to right at random (flip), and parts of them (crop)."),
    ] = "flip"
    smallest_crop: Annotated[
        float, typer.Option(help="Share of the image that such a part has at least.")
    ] = 0.4
    train_size: Annotated[
        int | None, typer.Option(help="Learn from images of this size, to be faster.")
    ] = None
    precision: Annotated[
        Precision, typer.Option(help="bfloat16 for mixed precision, where the hardware has it.")
    ] = "float32"
    freeze_norm: Annotated[
        bool, typer.Option("--freeze-norm", help="Keep the statistics of batch normalisation.")
    ] = False
    held_out: Annotated[
        float, typer.Option(help="Share of the images that tell which epoch was best.")
    ] = 0.05
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0

    def recipe(self) -> Recipe:
        """The recipe that these options mean."""
        values = asdict(self)
        try:
            values["masks"] = tuple(int(count) for count in self.masks.split(","))
        except ValueError:
            raise ValueError(f"--masks must be as 6 or 3,6, but got {self.masks!r}") from None
        return Recipe(size=values.pop("train_size"), **values)


@app.command()
@grouped
def finetune(
    data: Data,
    folder: Annotated[Path, typer.Argument(help="For weights, log, plot and state.")],
    model: ModelOptions,
    source: DataOptions,
    options: RecipeOptions,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head", help="Give the model a fresh last layer for the data's classes."
        ),
    ] = False,
    save_every: Annotated[
        int, typer.Option(min=1, help="Steps after which its state is stored.")
    ] = SAVE_EVERY,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell the recipe, its steps and its cost.")
    ] = False,
    json: Json = False,
) -> None:
    """Teach a classifier to see past masks, so that more of its labels can be certified.

    Kill it at any moment: the same command resumes. The weights of the epoch with the lowest loss on
    held-out images are in FOLDER/best.safetensors, for --weights of the other commands.

    On several GPUs: `accelerate launch -m patchdemux finetune ...`

    The paper's defense fine-tuning:

    `patchdemux finetune coco/ tuned --split train2014 --model tresnet_l --weights asl.pth`

    To other classes:

    `patchdemux finetune VOCdevkit tuned --split trainval --model tresnet_l --weights asl.pth --new-head
    --rate 2e-3 --epochs 15`
    """
    recipe = options.recipe()
    torch.manual_seed(recipe.seed)  # of new heads and untrained models
    classifier, dataset = source.open(data, model, outputs_of(model) if new_head else None)
    if new_head:
        classifier = with_classes(classifier, dataset.class_names)
    notes = notes_to(json) if is_main_process() else Console(quiet=True)
    plan = planned(classifier, dataset, recipe)
    search = {"search_views": plan.search_views, "search_views_per_image": plan.views_per_image}
    notes.print(f"{recipe}\n{plan}", highlight=False, soft_wrap=True)
    if dry_run:
        if json:
            print_json({"recipe": asdict(recipe), "steps": plan.steps, **search})
        return
    try:
        with training_bar() as progress:
            found = run_finetuning(
                classifier, dataset, folder, recipe, save_every=save_every, progress=progress
            )
    except KeyboardInterrupt:
        typer.echo("stopped: what is stored stays, and the same command resumes", err=True)
        raise typer.Exit(130) from None
    if json and is_main_process():
        print_json({"weights": str(found.weights.resolve()), "epochs": list(found.epochs)})
    if json:
        return
    for entry in found.epochs:
        kept = "  (kept)" if entry == found.best else ""
        notes.print(
            f"epoch {entry['epoch'] + 1}: held-out loss {entry['held_out_loss']:.4f}, AP "
            f"{100 * entry['held_out_ap']:.1f}, behind masks "
            f"{100 * entry['held_out_masked_ap']:.1f}{kept}",
            highlight=False,
        )
    notes.print(f"weights: {found.weights.resolve()}", highlight=False, soft_wrap=True)


def outputs_of(model: ModelOptions) -> tuple[str, ...] | None:
    """Stand-ins for the classes of the weights, where the model is made by name to fit them."""
    if model.weights is None or not model.is_made_to_size:
        return None
    network = load_model(str(model.model)).model
    assert isinstance(network, torch.nn.Module)
    last = list(network.state_dict())[-1]  # safetensors are not in this order
    count = len(read_state(model.weights).get(last, ()))
    return tuple(f"output {number}" for number in range(count)) or None


@contextmanager
def training_bar() -> Iterator[Progress]:
    """A bar of the steps with the loss, or lines for a log."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    terminal = progress_console.is_terminal
    words = TextColumn("{task.fields[words]}")
    left = TimeRemainingColumn()
    with Bar(*columns, words, left, console=progress_console, disable=not terminal) as bar:
        task = bar.add_task("", total=None, words="")
        told = time.monotonic()

        def report(what: str, done: int, total: int, said: str) -> None:
            nonlocal told
            bar.update(task, description=what, completed=done, total=total, words=said)
            if not terminal and is_main_process() and time.monotonic() - told > LOG_EVERY:
                told = time.monotonic()
                typer.echo(f"{what}: {done:,} of {total:,}, {said}".removesuffix(", "), err=True)

        yield report
