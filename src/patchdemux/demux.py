"""The defended classifier."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import Certificate, Method, certify
from patchdemux.classifier import Classifier
from patchdemux.defenses import Decision, Defense, DoubleMasking
from patchdemux.engine import Engine, Fill, Progress, check_images
from patchdemux.inputs import logit
from patchdemux.margin import Margin, measure_margin
from patchdemux.runtimes import make_runtime
from patchdemux.threat import PatchThreat, Size, as_size

if TYPE_CHECKING:
    from patchdemux.runs import Run


class PatchDemux(nn.Module):
    """A multi-label classifier that is certifiably robust against a patch.

    It is a module itself: `demux(images)` returns defended scores as logits, so it drops in wherever
    the undefended model stood. Thresholds are probabilities here.

    Args:
        model: a `Classifier`, or any torch module or callable from images (image, channel, height,
            width) in [0, 1] to logits (image, class).
        threat: what the attacker may do, in pixels of the model's input.
        defense: how bounds are proved.
        image_size: height and width of the images; other sizes are then refused.
        fill: the value of hidden pixels, one number or one per channel; or "mean", that of the
            visible pixels of each view.
        batch_size: masked views per call of the model; None finds it.
        progress: called with the views done and their total.
        runtime: what runs the model: "torch", "compile", "onnx" or "openvino"; None: as the classifier
            is, which is torch unless `make_runtime` made it.
        precision: "float32", "bfloat16" or "float16", where the machine and the runtime have it.

    Attributes:
        margin: what `certify` moves bounds by; measured when it is first needed, unless `from_run`
            took it from a run. Set it to None after the model has changed.
    """

    margin: Margin | None = None

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        threat: PatchThreat,
        defense: Defense | None = None,
        image_size: Size | None = None,
        fill: Fill = 0.0,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
        runtime: str | None = None,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(threat, PatchThreat):
            raise TypeError(f"threat must be a PatchThreat, but got {threat!r}")
        if not (defense is None or isinstance(defense, Defense)):
            raise TypeError(
                f"defense must be a Defense, such as DoubleMasking(), but got {defense!r}"
            )
        given = Classifier.of(model)
        self.classifier = make_runtime(
            given, runtime or given.runtime, precision or given.precision
        )
        self.threat = threat
        self.defense = DoubleMasking() if defense is None else defense
        own = self.classifier.image_size
        self.image_size = own if image_size is None else as_size("image_size", image_size)
        if own is not None and self.image_size != own:
            raise ValueError(
                f"image_size is {self.image_size}, but the classifier wants images of {own}"
            )
        self.engine = Engine(self.classifier, fill=fill, batch_size=batch_size, progress=progress)
        if self.image_size is not None:
            self.check(self.image_size)

    @classmethod
    def from_run(
        cls,
        run: Run | str | PathLike[str],
        model: Callable[[Tensor], Tensor],
        *,
        defense: Defense | None = None,
        runtime: str | None = None,
        precision: str | None = None,
        allow_mismatch: bool = False,
        progress: Progress | None = None,
    ) -> PatchDemux:
        """The defended classifier that a run certified: the same function, to the last bit.

        Args:
            run: the run, or where it lies.
            model: the model; its weights are compared with those of the run.
            defense: the run's defense, where it is not one of this package.
            runtime, precision: None: those of the run.
            allow_mismatch: take another runtime, precision, device or version of torch than the run
                had. Its certificates then hold only as far as its margin covers the differences.
            progress: called with the views done and their total.

        Raises:
            RunError: it is another model, or another function of it.
        """
        from patchdemux.runs.rebuild import rebuild

        return rebuild(
            run,
            model,
            defense=defense,
            runtime=runtime,
            precision=precision,
            allow_mismatch=allow_mismatch,
            progress=progress,
        )

    def extra_repr(self) -> str:
        return f"threat={self.threat}, defense={self.defense}"

    def check(self, image_size: Size) -> None:
        """Raise a ValueError if the defense cannot prove the threat on images of this size.

        Nothing is run. All other methods do this first.
        """
        self.defense.check(self.classifier, image_size, self.threat)

    def bounds(self, images: Tensor) -> ScoreBounds:
        """Defended scores of the images, with an interval per patch region, as logits."""
        return self.defense.bounds(self.engine, self._checked(images), self.threat)

    def forward(self, images: Tensor) -> Tensor:
        """Defended scores as logits, where the images are."""
        return torch.from_numpy(self.bounds(images).defended).to(images.device)

    def predict(self, images: Tensor, threshold: float = 0.5) -> Tensor:
        """Labels (image, class): true where the defended probability is above the threshold.

        They take far fewer views than the defended scores: only what decides them is run.
        """
        return torch.from_numpy(self.decide(images, threshold).labels).to(images.device)

    def decide(
        self, images: Tensor, threshold: float = 0.5, max_views: int | None = None
    ) -> Decision:
        """The labels that `predict` gives, after at most `max_views` views of each image.

        Labels that take more are reported as undecided, with the interval known so far.
        """
        at = logit(threshold)
        images = self._checked(images)
        return self.defense.decide(self.engine, images, self.threat, at, max_views)

    def certify(
        self,
        images: Tensor,
        targets: Any,
        threshold: float = 0.5,
        method: Method = "class",
        *,
        margin: float | Literal["measured"] = "measured",
    ) -> Certificate:
        """What is guaranteed of the predictions for these images, whatever a patch shows.

        Args:
            images: (image, channel, height, width) in [0, 1].
            targets: their labels (image, class), 0 or 1.
            threshold: a probability.
            method: which attackers are bounded; see `patchdemux.certify`.
            margin: every bound is moved outward by so much, for what batches change in a score;
                "measured" measures it on the first images that are certified, and 0 goes without.
        """
        at = logit(threshold)
        bounds = self.bounds(images)
        if margin == "measured":
            self.margin = self.margin or measure_margin(self, images)
            margin = self.margin.value
        return certify(bounds.widened(margin), targets, at, method)

    def _checked(self, images: Tensor) -> Tensor:
        """The images, of the size that is defended."""
        images = check_images(images)
        size: tuple[int, ...] = tuple(images.shape[-2:])
        if self.image_size is not None and size != self.image_size:
            raise ValueError(
                f"the images have {size[0]} x {size[1]} pixels, but this classifier is defended "
                f"for {self.image_size[0]} x {self.image_size[1]}; resize them first"
            )
        self.check(size)
        return images
