"""Running the classifier on masked views of images: the only place that calls the model.

Views are made on the model's device, batch by batch, across masks and images, and never all exist at
once. The batch size is found by itself: it doubles, on the real work, for as long as that makes views
faster, and is halved when memory runs out.

The model runs without gradients, with one exception: `Engine.gradient`, for attacks. It is in here so
that an attack sees exactly the views that a certificate is made of, and still nothing else calls the
model; and no bound and no label is ever read from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from patchdemux.allocator import keep_freed_memory
from patchdemux.batch_size import BatchSize
from patchdemux.classifier import Answers, Classifier

PIXELS_PER_BATCH = 8 * 448 * 448
"""The largest batch that the search tries on a CPU, where larger ones take memory and hardly save time:
EfficientNet-Lite0 takes 0.1 GB for a view of 448 x 448."""

Fill = float | Sequence[float] | str
"""What hidden pixels show; it may depend on the visible pixels of the view, and on nothing else."""

Progress = Callable[[int, int], None]
"""Called with the number of views done and their total, after every batch."""


class Engine:
    """Scores of a classifier on images with parts of them hidden.

    Args:
        classifier: what is run; in eval mode and without gradients while it runs.
        fill: the value of hidden pixels, in [0, 1]: one number, or one per channel; or "mean", that
            of the view's visible pixels, channel by channel.
        batch_size: views per call of the model; None finds it.
        progress: called after every batch.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        fill: Fill = 0.0,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but got {batch_size}")
        self.classifier = classifier
        self.fill = as_fill(fill)
        if self.fill == "mean" and classifier.shares_features:
            raise ValueError(
                f'with fill="mean" a mask changes what other masks show, so views cannot share '
                f"features: take another runtime than {classifier.runtime}, or another fill"
            )
        self.progress = progress
        self.batch = BatchSize(batch_size)

    def scores(self, images: Tensor) -> Float[np.ndarray, "image class"]:
        """Scores of whole images, nothing hidden."""
        nothing = np.zeros((1, *images.shape[-2:]), bool)
        return self.masked_scores(images, nothing, np.zeros((1, 1), int))[:, 0]

    def masked_scores(
        self,
        images: Tensor,
        hidden: Bool[np.ndarray, "mask height width"],
        views: Int[np.ndarray, "view k"],
    ) -> Float[np.ndarray, "image view class"]:
        """Scores of every image in every view; view v hides all pixels of the masks `views[v]`."""
        each = np.repeat(np.arange(len(images)), len(views))[:, None]
        jobs = np.concatenate([each, np.tile(views, (len(images), 1))], axis=1)
        return self.masked(images, hidden)(jobs).reshape(len(images), len(views), -1)

    def masked(
        self, images: Tensor, hidden: Bool[np.ndarray, "mask height width"]
    ) -> Callable[[Int[np.ndarray, "job k"]], Float[np.ndarray, "job class"]]:
        """Get images and masks ready; the function returned gives the scores of any views of them.

        Its jobs are rows of an image's index and the masks whose pixels are hidden. Jobs of the same
        image should follow each other.
        """
        images, visible, device = self._ready(images, hidden)

        def views(visible: Tensor, owners: Int[np.ndarray, " job"], masks: Tensor) -> Tensor:
            with one_thread(self.classifier.own_threads):
                return self._views(images, visible, owners, masks, device)

        answers = self.classifier.of_views(views, visible)
        return lambda jobs: self._in_batches(answers, jobs, device)

    def gradient(
        self,
        images: Tensor,
        hidden: Bool[np.ndarray, "mask height width"],
        jobs: Int[np.ndarray, "job k"],
        gain: Callable[[Tensor, slice], Tensor],
    ) -> Tensor:
        """The slope of an attacker's gain at every pixel of the images.

        Args:
            images, hidden, jobs: as in `masked`.
            gain: from the scores (job, class) of some of the jobs, and which these are, to numbers
                that are summed over all jobs.
        """
        images, visible, device = self._ready(images, hidden)
        masks = torch.from_numpy(jobs[:, 1:]).to(device)
        total = torch.zeros_like(images)

        def compute(first: int, last: int) -> Float[np.ndarray, "job value"]:
            owners = jobs[first:last, 0]
            with torch.inference_mode(False), torch.enable_grad():
                views = self._views(images, visible, owners, masks[first:last], device)
                scores = self._scores_with_gradients(views.requires_grad_())
                own = gain(scores, slice(first, last)).sum()
                # Of the views alone: the weights get no gradient, as if none had been asked for.
                (slope,) = torch.autograd.grad(own, views)
            check_finite(scores.detach().cpu().numpy(), first, jobs[:, 0])
            # With the mean as fill, what hidden pixels pass on to the visible ones is left out.
            slope = slope[:, : images.shape[1]] * shown(visible, masks[first:last])
            total.index_add_(0, torch.from_numpy(owners).to(total.device), slope.to(total))
            return np.empty((last - first, 0), np.float32)

        self.batched(len(jobs), compute)
        return total

    def _scores_with_gradients(self, views: Tensor) -> Tensor:
        """Scores whose gradients can be followed, or an error that says what to do instead."""
        cause = None
        try:
            scores: Tensor = self.classifier(views).float()
            if scores.requires_grad:
                return scores
        except RuntimeError as error:
            if "requires grad" not in str(error):  # what PyTorch says where NumPy takes over
                raise
            cause = error
        raise ValueError(
            "this model gives no gradients (it is no torch module, or it cuts them off): "
            'attack it with method="square" or method="random"'
        ) from cause

    def _ready(
        self, images: Tensor, hidden: Bool[np.ndarray, "mask height width"]
    ) -> tuple[Tensor, Tensor, torch.device]:
        """The images, checked; what the masks leave visible, as 1; and where the model runs."""
        images = self.accepted(images)
        if self.fill != "mean" and len(self.fill) not in (1, images.shape[1]):
            raise ValueError(
                f"fill has {len(self.fill)} channels, but the images have {images.shape[1]}"
            )
        device = device_of(self.classifier, images)
        if device.type == "cpu":
            self.batch.at_most(PIXELS_PER_BATCH // (images.shape[-2] * images.shape[-1]))
        visible = torch.from_numpy(~hidden).to(device, torch.float32)
        return pinned(images, device), visible, device

    def accepted(self, images: Tensor) -> Tensor:
        """Images as they are run, or an error that says what is wrong with them."""
        return check_images(images)

    def batched(
        self, total: int, compute: Callable[[int, int], Float[np.ndarray, "job value"]]
    ) -> Float[np.ndarray, "job value"]:
        """What `compute(first, last)` gives for `total` jobs, a batch of them at a time.

        Whatever runs the model, or a part of it, runs in here: in eval mode and without gradients,
        at the batch size that was found best, halved when memory runs out, and with progress.
        """
        answers: np.ndarray | None = None
        with running(self.classifier):
            keep_freed_memory()
            done = 0
            while done < total:
                size = min(self.batch.size, total - done)
                try:
                    started = time.perf_counter()
                    batch = compute(done, done + size)
                    self.batch.took(size, time.perf_counter() - started)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    self.batch.halve(error)
                    continue
                if answers is None:  # one array: many small ones would break up the freed memory
                    answers = np.empty((total, *batch.shape[1:]), batch.dtype)
                answers[done : done + size] = batch
                done += size
                if self.progress:
                    self.progress(done, total)
        assert answers is not None
        return answers

    def _in_batches(
        self, answers: Answers, jobs: Int[np.ndarray, "job k"], device: torch.device
    ) -> Float[np.ndarray, "job class"]:
        """Scores of the jobs."""
        masks = torch.from_numpy(jobs[:, 1:]).to(device)

        def compute(first: int, last: int) -> Float[np.ndarray, "job class"]:
            logits = answers(jobs[first:last, 0], masks[first:last])
            scores: np.ndarray = logits.float().cpu().numpy()
            check_finite(scores, first, jobs[:, 0])
            return scores

        return self.batched(len(jobs), compute)

    def _views(
        self,
        images: Tensor,
        visible: Tensor,
        owners: Int[np.ndarray, " job"],
        masks: Tensor,
        device: torch.device,
    ) -> Tensor:
        """One batch: views of the images `owners`, with all pixels of `masks` hidden."""
        channels, *size = images.shape[1:]
        told = self.classifier.visible_channel
        batch = torch.empty((len(owners), channels + told, *size), device=device)
        constant = None
        if self.fill != "mean":
            constant = torch.tensor(self.fill, device=device).reshape(-1, 1, 1)
        changes = np.flatnonzero(np.diff(owners)) + 1
        for first, last in pairwise([0, *changes.tolist(), len(owners)]):
            keep = shown(visible, masks[first:last])
            # Times 1 or 0 and plus 0 or the fill: exact, and several times faster than a choice.
            own_views = batch[first:last, :channels]
            torch.mul(images[owners[first]].to(device, non_blocking=True), keep, out=own_views)
            if constant is None:
                own_views += mean_of_visible(own_views, keep) * (1 - keep)
            elif constant.any():
                own_views += constant * (1 - keep)
            if told:
                batch[first:last, channels:] = keep
        return batch


def as_fill(fill: Fill) -> list[float] | Literal["mean"]:
    """A fill as plain values: one per channel or for all of them, or "mean"."""
    if fill == "mean":
        return "mean"
    if isinstance(fill, str):
        raise ValueError(f'fill must be pixel values within [0, 1] or "mean", but got {fill!r}')
    values: list[float] = torch.as_tensor(fill, dtype=torch.float32).flatten().tolist()
    if not all(0 <= value <= 1 for value in values):
        raise ValueError(f"fill must be pixel values within [0, 1], but got {fill}")
    return values


def mean_of_visible(
    views: Float[Tensor, "view channel height width"], visible: Float[Tensor, "view 1 height width"]
) -> Float[Tensor, "view channel 1 1"]:
    """Mean of every view's visible pixels, where the hidden ones are 0; 0 if all are hidden.

    In double precision: the order of a sum, which depends on the batch, is then lost in rounding.
    """
    total = views.sum(dim=(2, 3), keepdim=True, dtype=torch.float64)
    return (total / visible.sum(dim=(2, 3), keepdim=True).clamp(min=1)).float()


def shown(visible: Tensor, masks: Tensor) -> Tensor:
    """1 where no mask of a view hides the pixel, else 0: (view, 1, height, width)."""
    columns = (visible.index_select(0, column) for column in masks.unbind(dim=1))
    return reduce(torch.mul, columns)[:, None]


def check_images(images: Tensor) -> Tensor:
    """Images as the package wants them, or an error that says what is wrong."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch tensor, but got {type(images).__name__}")
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            f"images must be (image, channel, height, width), none of them 0, "
            f"but got shape {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise TypeError(
            f"images must be floating point in [0, 1], but got {images.dtype}; "
            f"divide 8-bit images by 255"
        )
    low, high = (float(x) for x in images.detach().aminmax())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"images must lie in [0, 1], but reach from {low:.4g} to {high:.4g}; "
            f"normalisation belongs to the classifier: Classifier(model, mean=..., std=...)"
        )
    return images.detach().float()


def check_finite(
    scores: Float[np.ndarray, "batch class"], first: int, owners: Int[np.ndarray, " job"]
) -> None:
    """No NaN or infinity among the scores of the jobs that begin at `first`."""
    bad = ~np.isfinite(scores)
    if bad.any():
        job, label = (int(i) for i in np.argwhere(bad)[0])
        image = owners[first + job]
        view = int((owners[: first + job] == image).sum())
        raise ValueError(
            f"the model gave {scores[job, label]} as score of image {image}, class {label} "
            f"(masked view {view}); scores must be finite logits"
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch says that memory ran out: on an accelerator, or in the CPU's allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def device_of(model: nn.Module, images: Tensor) -> torch.device:
    """Where the model's weights are; where the images are, if it has none."""
    weights = next(model.parameters(), None)
    return images.device if weights is None else weights.device


def pinned(images: Tensor, device: torch.device) -> Tensor:
    """The images in memory that a GPU reads by itself, so that nothing waits for their transfer."""
    return images.pin_memory() if device.type == "cuda" and images.device.type == "cpu" else images


@contextmanager
def running(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients; every submodule's own mode is restored afterwards."""
    training = [module for module in model.modules() if getattr(module, "training", False)]
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """PyTorch works with one thread: idle ones spin for a while, and keep others off the processor.

    Where another runtime runs the model, that took an eighth of its time on two cores.
    """
    threads = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
