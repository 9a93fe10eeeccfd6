"""Fine-tuning a classifier, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchdemux.allocator import keep_freed_memory
from patchdemux.classifier import Classifier
from patchdemux.data.base import ImageSet
from patchdemux.engine import device_of
from patchdemux.runs.fingerprint import classifier_fields, data_fields
from patchdemux.runs.lock import only_writer
from patchdemux.training.batches import Place, places, read_ahead
from patchdemux.training.held_out import measure_held_out
from patchdemux.training.hiding import Hider, trained_size
from patchdemux.training.losses import asymmetric_losses
from patchdemux.training.plan import Plan, planned
from patchdemux.training.processes import Processes
from patchdemux.training.recipe import Recipe
from patchdemux.training.record import BEST, LAST, Record
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

    It is left in evaluation mode, with the weights of the last step.

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
    plan = planned(classifier, dataset, recipe)
    processes = Processes(device_of(classifier, torch.empty(0)))
    if recipe.batch_size % processes.count:
        raise ValueError(
            f"batch_size {recipe.batch_size} cannot be shared by {processes.count} processes"
        )
    keep_freed_memory()
    record = Record(Path(folder), main=processes.is_main)
    fields = {
        **classifier_fields(classifier),
        "recipe": asdict(recipe),
        "processes": processes.count,
        **data_fields(dataset, range(len(dataset))),
    }
    job = _Job(classifier, dataset, recipe, plan, record, processes, progress or _silent)
    with only_writer(record.folder) if processes.is_main else nullcontext():
        return job.run(fields, save_every)


class _Job:
    """One fine-tuning, in one process."""

    def __init__(
        self,
        classifier: Classifier,
        dataset: ImageSet,
        recipe: Recipe,
        plan: Plan,
        record: Record,
        processes: Processes,
        progress: Progress,
    ) -> None:
        self.classifier, self.dataset, self.recipe, self.plan = classifier, dataset, recipe, plan
        self.record, self.processes, self.progress = record, processes, progress
        self.losses = asymmetric_losses(recipe)
        self.hider = Hider(classifier, recipe, trained_size(recipe, dataset), self.losses)
        self.targets = torch.from_numpy(dataset.targets.astype(np.float32))

    def run(self, fields: dict[str, Any], save_every: int) -> Finetuned:
        self.record.begin(fields)
        state = self.processes.from_main(self.record.load())
        classifier = self.classifier.to(self.processes.device)
        if self.recipe.cutout == "greedy" and self.recipe.search == "once":
            self.hider.search_beforehand(
                self.dataset,
                self.plan.training,
                self.processes.from_main(self.record.load_masks()),
                self.processes,
                self.record.save_masks,
                lambda done, total: self.progress("searching masks", done, total, ""),
            )
        if classifier.channels_last:
            classifier.to(memory_format=torch.channels_last)
        steps = self.plan.steps
        learner = Learner(classifier, self.recipe, steps, self.losses, self.processes)
        best = math.inf
        if state is not None:
            learner.restore(state)
            best = state["best"]
        epoch_steps = steps // self.recipe.epochs
        upcoming = self._own(places(self.recipe, self.plan.training, learner.step))
        for step, place, images in read_ahead(self.recipe, self.dataset, upcoming):
            loss, rate = self._step(learner, place, images)
            epoch, inside = divmod(step, epoch_steps)
            self.record.log(step=step, epoch=epoch, loss=loss, rate=rate)
            words = f"epoch {epoch + 1} of {self.recipe.epochs}, loss {loss:.2f}"
            self.progress("training", step + 1, steps, words)
            ends = inside + 1 == epoch_steps
            if ends:
                best = self._end_of_epoch(learner, epoch, best)
            if ends or (step + 1) % save_every == 0:
                self.record.save({**learner.state(), "best": best})
        self.record.save_weights(LAST, weights_of(learner.best_so_far))
        classifier.eval()
        entries = self.processes.from_main(self.record.entries())
        epochs = [entry for entry in entries if "held_out_loss" in entry]
        return Finetuned(self.record.folder / BEST, tuple(epochs))

    def _own(self, upcoming: Iterator[tuple[int, Place]]) -> Iterator[tuple[int, Place]]:
        """Of every step, this process's share of the images."""
        for step, place in upcoming:
            own = place.images[self.processes.rank :: self.processes.count]
            yield step, Place(place.epoch, own)

    def _step(self, learner: Learner, place: Place, images: Tensor) -> tuple[float, float]:
        device = self.processes.device
        images, targets = images.to(device), self.targets[place.images].to(device)
        return learner.learn(self.hider.hide(place, images, targets), targets)

    def _end_of_epoch(self, learner: Learner, epoch: int, best: float) -> float:
        """Measure on the held-out images, keep the weights if they are the best, and draw the log."""
        if self.processes.is_main:
            held_out = self.plan.held_out
            self.progress("measuring", 0, len(held_out), "on held-out images")
            found = measure_held_out(
                learner.best_so_far, self.dataset, held_out, self.recipe, self.losses
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
        self.processes.wait()
        return best


def weights_of(classifier: Classifier) -> dict[str, Tensor]:
    """The model's state, under the names that it has outside the classifier."""
    assert isinstance(classifier.model, nn.Module)
    return classifier.model.state_dict()


def _silent(what: str, done: int, total: int, words: str) -> None:
    pass
