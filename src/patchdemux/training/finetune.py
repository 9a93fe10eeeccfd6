"""Fine-tuning a classifier, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from patchdemux.allocator import keep_freed_memory
from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.runs.errors import RunError
from patchdemux.runs.fingerprint import classifier_fields, data_fields
from patchdemux.runs.lock import only_writer
from patchdemux.training.batches import Place, places, read_ahead, split, steps_per_epoch
from patchdemux.training.cutout import searched_views
from patchdemux.training.held_out import measure_held_out
from patchdemux.training.hiding import Hider, trained_size
from patchdemux.training.losses import asymmetric_losses
from patchdemux.training.recipe import Recipe
from patchdemux.training.record import BEST, LAST, MASKS, Record
from patchdemux.training.state import Learner

SAVE_EVERY = 100
"""Steps after which the state is stored, and at the end of every epoch."""

Progress = Callable[[str, int, int, str], None]
"""Called with what goes on, how much of it is done, how much there is, and figures in words."""


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning ended with.

    Attributes:
        weights: the file of the best epoch.
        epochs: per epoch: loss, held-out loss, and average precision there, as in the log.
    """

    weights: Path
    epochs: tuple[dict[str, Any], ...]

    @property
    def best(self) -> dict[str, Any]:
        """The epoch whose weights were kept."""
        return min(self.epochs, key=lambda entry: entry["held_out_loss"])


def finetune(
    classifier: Classifier,
    dataset: ImageSet,
    folder: str | os.PathLike[str],
    recipe: Recipe | None = None,
    *,
    save_every: int = SAVE_EVERY,
    progress: Progress | None = None,
) -> Finetuned:
    """Fine-tune a classifier on a data set, in place; the weights of the best epoch are stored.

    Killed at any moment and called again with the same arguments, it resumes, and on a CPU it ends bit
    for bit as if it had not been. Under `accelerate launch`, every step is shared among the processes.

    Args:
        classifier: around a torch module, with an output for every class of the data.
        dataset: images with labels; a part of them is held out.
        folder: for weights, log, plot and state.
        recipe: how; the paper's defense fine-tuning by default.
        save_every: steps after which the state is stored.
        progress: called now and then.

    Raises:
        ValueError: the settings do not fit the data.
        RunError: the folder holds something else, or the loss is no number any more.
    """
    recipe = recipe or Recipe()
    check(classifier, dataset)
    accelerator = make_accelerator(classifier)
    size = trained_size(recipe, dataset)
    training, held_out = split(recipe, len(dataset))
    check_labels(dataset, training)
    steps = recipe.epochs * steps_per_epoch(recipe, len(training))
    if recipe.batch_size % accelerator.num_processes:
        raise ValueError(
            f"batch_size {recipe.batch_size} cannot be shared by {accelerator.num_processes} processes"
        )
    keep_freed_memory()
    losses = asymmetric_losses(recipe)
    record = Record(Path(folder), main=accelerator.is_main_process)
    hider = Hider(classifier, recipe, size, losses)
    fields = {
        **classifier_fields(classifier),
        "recipe": asdict(recipe),
        "processes": accelerator.num_processes,
        **data_fields(dataset, range(len(dataset))),
    }
    job = _Job(classifier, dataset, recipe, record, hider, accelerator, progress or _silent)
    if not accelerator.is_main_process:
        return job.run(fields, training, held_out, steps, save_every)
    with only_writer(record.folder):
        return job.run(fields, training, held_out, steps, save_every)


class _Job:
    """One fine-tuning, in one process."""

    def __init__(
        self,
        classifier: Classifier,
        dataset: ImageSet,
        recipe: Recipe,
        record: Record,
        hider: Hider,
        accelerator: Any,
        progress: Progress,
    ) -> None:
        self.classifier, self.dataset, self.recipe = classifier, dataset, recipe
        self.record, self.hider, self.accelerator = record, hider, accelerator
        self.progress = progress
        self.device: torch.device = accelerator.device
        self.targets = torch.from_numpy(dataset.targets.astype(np.float32))

    def run(
        self,
        fields: dict[str, Any],
        training: Int[np.ndarray, " image"],
        held_out: Int[np.ndarray, " image"],
        steps: int,
        save_every: int,
    ) -> Finetuned:
        self.record.begin(fields)
        self.accelerator.wait_for_everyone()
        state = self.record.load()
        if self.recipe.cutout == "greedy" and self.recipe.search == "once":
            self._search(training)
        classifier = self.classifier.to(self.device)
        if classifier.channels_last:
            classifier.to(memory_format=torch.channels_last)
        learner = Learner(classifier, self.recipe, steps, self.hider.losses, self.accelerator)
        best = math.inf
        if state is not None:
            learner.restore(state)
            best = state["best"]
        total, epoch_steps = 0.0, steps // self.recipe.epochs
        upcoming = self._own(places(self.recipe, training, learner.step))
        for step, place, images in read_ahead(self.recipe, self.dataset, upcoming):
            loss, rate = self._step(learner, place, images)
            if not math.isfinite(loss):
                raise RunError(
                    f"the loss became {loss} in step {step + 1} of {steps}: lower the rate "
                    f"({self.recipe.rate:g}), or train in float32. The state before it stays"
                )
            total += loss
            epoch, inside = divmod(step, epoch_steps)
            self.record.log(step=step, epoch=epoch, loss=loss, rate=rate)
            words = f"epoch {epoch + 1} of {self.recipe.epochs}, loss {loss:.2f}"
            self.progress("training", step + 1, steps, words)
            ends = inside + 1 == epoch_steps
            if ends:
                best = self._end_of_epoch(learner, held_out, epoch, best)
            if ends or (step + 1) % save_every == 0:
                self.record.save({**learner.state(), "best": best})
        self.record.save_weights(LAST, weights_of(learner.best_so_far))
        self.accelerator.wait_for_everyone()
        epochs = [entry for entry in self.record.entries() if "held_out_loss" in entry]
        return Finetuned(self.record.folder / BEST, tuple(epochs))

    def _search(self, training: Int[np.ndarray, " image"]) -> None:
        """Find all masks beforehand; with several processes the first one does."""
        path = self.record.folder / MASKS
        self.classifier.to(self.device)
        with self.accelerator.main_process_first():
            self.hider.search_beforehand(
                self.dataset,
                training,
                path,
                lambda done, total: self.progress("searching masks", done, total, ""),
            )

    def _own(self, upcoming: Any) -> Any:
        """Of every step, this process's share of the images."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        for step, place in upcoming:
            yield step, Place(place.epoch, place.images[rank::processes])

    def _step(self, learner: Learner, place: Place, images: Tensor) -> tuple[float, float]:
        targets = self.targets[place.images].to(self.device)
        images = images.to(self.device)
        return learner.learn(self.hider.hide(place, images, targets), targets)

    def _end_of_epoch(
        self, learner: Learner, held_out: Int[np.ndarray, " image"], epoch: int, best: float
    ) -> float:
        """Measure on the held-out images, keep the weights if they are the best, and draw the log."""
        if not self.accelerator.is_main_process:
            self.accelerator.wait_for_everyone()
            return best
        self.progress("measuring", 0, len(held_out), "on held-out images")
        found = measure_held_out(
            learner.best_so_far, self.dataset, held_out, self.recipe, self.hider.losses
        )
        self.record.log(
            step=learner.step - 1,
            epoch=epoch,
            held_out_loss=found.loss,
            held_out_ap=found.ap,
            held_out_masked_ap=found.masked_ap,
        )
        if found.loss < best:
            best = found.loss
            self.record.save_weights(BEST, weights_of(learner.best_so_far))
        self.record.plot()
        self.accelerator.wait_for_everyone()
        return best


def planned_views(recipe: Recipe, image_size: tuple[int, int], images: int) -> tuple[int, int]:
    """Steps of a training, and forward passes of its search for masks at most."""
    training = images - round(recipe.held_out * images)
    steps = recipe.epochs * steps_per_epoch(recipe, training)
    if recipe.cutout != "greedy":
        return steps, 0
    views = searched_views(recipe.mask_sets(image_size))
    if recipe.search == "once":
        return steps, training * views
    return steps, round(recipe.share * steps * recipe.batch_size * views)


def make_accelerator(classifier: Classifier) -> Any:
    """Hugging Face Accelerate on the classifier's kind of device."""
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise ImportError(
            "fine-tuning needs accelerate: pip install 'patchdemux[train]'"
        ) from error
    weights = next(classifier.parameters())
    return Accelerator(cpu=weights.device.type == "cpu")


def check(classifier: Classifier, dataset: ImageSet) -> None:
    """The classifier can learn, and answers for the classes of the data."""
    if not isinstance(classifier.model, nn.Module) or next(classifier.parameters(), None) is None:
        raise TypeError("only a torch module with weights can be fine-tuned")
    if classifier.runtime != "torch" or classifier.precision != "float32":
        raise ValueError("fine-tuning needs the classifier in torch and float32")
    if classifier.image_size not in (None, tuple(dataset.image_size)):
        raise ValueError(
            f"the classifier wants images of {classifier.image_size}, but the data set gives "
            f"{tuple(dataset.image_size)}"
        )
    names = classifier.class_names
    if names is not None and names != tuple(dataset.class_names):
        raise ValueError(
            f"the classifier answers for {len(names)} classes ({', '.join(names[:3])}, ...), the data "
            f"have {len(dataset.class_names)} ({', '.join(dataset.class_names[:3])}, ...): give it a "
            f"new head, with --new-head or with_classes(classifier, dataset.class_names)"
        )
    shown = torch.zeros(1, 3, *dataset.image_size).to(next(classifier.parameters()).device)
    was = classifier.training
    with torch.inference_mode():
        outputs = classifier.eval()(shown).shape[1]
    classifier.train(was)
    if outputs != len(dataset.class_names):
        raise ValueError(
            f"the model gives {outputs} scores, but the data have {len(dataset.class_names)} classes: "
            f"give it a new head, with --new-head or with_classes(classifier, dataset.class_names)"
        )


def check_labels(dataset: ImageSet, training: Int[np.ndarray, " image"]) -> None:
    """Every class can be learned."""
    positives = dataset.targets[training].sum(axis=0)
    empty = [dataset.class_names[place] for place in np.flatnonzero(positives == 0)]
    if empty:
        raise ValueError(
            f"no image to train on has the label {', '.join(empty[:8])}"
            f"{f' and {len(empty) - 8} more' if len(empty) > 8 else ''}: such a class cannot be "
            f"learned. Take more images, or leave the class out"
        )


def weights_of(classifier: Classifier) -> dict[str, Tensor]:
    """The model's state, under the names that it has outside the classifier."""
    assert isinstance(classifier.model, nn.Module)
    return classifier.model.state_dict()


def _silent(what: str, done: int, total: int, words: str) -> None:
    pass
