"""Everything that changes while a classifier learns: one step, and all that is kept to go on later."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from patchdemux.classifier import Classifier
from patchdemux.runs.errors import RunError
from patchdemux.training.batches import DROPOUT, generator
from patchdemux.training.cutout import Losses
from patchdemux.training.processes import Processes
from patchdemux.training.recipe import Recipe


class Learner:
    """A classifier, its optimizer, and the moving average of its weights.

    Args:
        classifier: learns in place.
        recipe: how.
        steps: of the whole training.
        losses: what it learns from.
        processes: that share every step.
    """

    def __init__(
        self,
        classifier: Classifier,
        recipe: Recipe,
        steps: int,
        losses: Losses,
        processes: Processes,
    ) -> None:
        from timm.utils.model_ema import ModelEmaV3

        self.classifier, self.recipe, self.losses = classifier, recipe, losses
        self.processes = processes
        self.average = (
            ModelEmaV3(classifier, recipe.average, use_warmup=True) if recipe.average else None
        )
        kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
        self.optimizer = kind(
            parameter_groups(classifier, recipe.weight_decay), lr=recipe.rate, fused=False
        )
        self.schedule = one_cycle(self.optimizer, recipe, steps)
        self.step, self.steps = 0, steps
        # With a single process the classifier itself: its `forward` is then not wrapped.
        self.wrapped = processes.prepared(classifier)

    @property
    def best_so_far(self) -> Classifier:
        """The classifier that is measured and kept: with averaged weights where there is an average."""
        if self.average is None:
            return self.classifier
        averaged: Classifier = self.average.module
        return averaged

    def learn(self, views: Tensor, targets: Tensor) -> tuple[float, float]:
        """One step on this process's images; the loss over those of all processes, and the rate.

        There may be several views of every image; each label then learns from its worst.

        Raises:
            RunError: the loss or its gradient is no number any more. The step is not taken.
        """
        seed = generator(self.recipe, DROPOUT, self.step, self.processes.rank).integers(2**62)
        torch.manual_seed(int(seed))
        self.classifier.train()
        if self.recipe.freeze_norm:
            for module in self.classifier.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        half = self.recipe.precision == "bfloat16"
        mixed = torch.autocast(views.device.type, torch.bfloat16) if half else nullcontext()
        with mixed:
            logits = self.wrapped(views)
        loss = self.losses(worst_logits(logits.float(), targets), targets).mean()
        self.optimizer.zero_grad()
        self.processes.backward(loss)
        everywhere = self.processes.mean(loss)
        self._check("loss", everywhere)
        gradients = [p.grad for p in self.classifier.parameters() if p.grad is not None]
        self._check("gradient", float(nn.utils.get_total_norm(gradients)))
        rate = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        self.processes.same_buffers(self.classifier)
        if self.average is not None:
            self.average.update(self.classifier, self.step)
        return everywhere, rate

    def _check(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            exact = "" if self.recipe.precision == "float32" else " or in float32"
            raise RunError(
                f"the {what} became {value} in step {self.step + 1} of {self.steps}: begin again in "
                f"another folder with a lower rate than {self.recipe.rate:g}{exact}. What was stored "
                f"before stays"
            )

    def state(self) -> dict[str, Any]:
        """What another process needs to go on from here, to the last bit."""
        return {
            "step": self.step,
            "model": self.classifier.state_dict(),
            "average": None if self.average is None else self.average.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.step = state["step"]
        self.classifier.load_state_dict(state["model"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


def one_cycle(
    optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """The rate rises in the first part of the steps, and falls to almost nothing in the others."""
    warmup = recipe.warmup
    if warmup * steps == 1:  # of a rise within a single step, PyTorch divides by zero
        warmup += 1e-6 / steps
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=steps, pct_start=warmup
    )


def worst_logits(
    logits: Float[Tensor, "view class"], targets: Float[Tensor, "image class"]
) -> Float[Tensor, "image class"]:
    """Over an image's views, the lowest score of a present label and the highest of an absent one.

    The extremes over all views are what a certificate compares with the threshold.
    """
    each = logits.reshape(-1, *targets.shape)
    return torch.where(targets > 0, each.amin(dim=0), each.amax(dim=0))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with weight decay, and those without: biases, and the scales of normalisations."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in learned if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
    ]
