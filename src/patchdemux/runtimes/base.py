"""What a runtime has to supply, and the classifier that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from patchdemux.classifier import Answers, Classifier, Views
from patchdemux.engine import device_of, running
from patchdemux.runtimes.cache import cache_folder

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Session = Callable[[Tensor], Tensor]
"""From images in [0, 1] of one size, as many as there are, to logits."""

TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""The largest difference from torch in float32, as a share of the largest logit. A wrong export, or
half precision in which small numbers vanish, differs by far more."""


class Runtime(ABC):
    """A way of running a model.

    Attributes:
        own_threads: whether it works with threads of its own, not PyTorch's.
        shares_features: whether views of one image share parts of what is computed.
    """

    name: str
    own_threads: bool = False
    shares_features: bool = False

    @abstractmethod
    def precisions(self, device: torch.device) -> tuple[Precision, ...]:
        """The precisions it offers there, if any; an `ImportError` where its library is missing."""

    @abstractmethod
    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> Session:
        """The classifier, normalisation included, made ready for images of one shape."""

    def accept(self, classifier: Classifier) -> None:  # noqa: B027  most accept all
        """Raise a ValueError if it is known beforehand that it cannot run this classifier."""

    def of_views(self, classifier: RuntimeClassifier, views: Views, visible: Tensor) -> Answers:
        """See `Classifier.of_views`, which this is unless views share features."""
        return Classifier.of_views(classifier, views, visible)

    @property
    def version(self) -> str:
        """The version of its library."""
        return torch.__version__


class RuntimeClassifier(Classifier):
    """A classifier with the same model, weights and normalisation, run by another runtime.

    The model is exported when the first images of a size come, and taken as it is then: make a new
    one after training. The first views that it is shown also go through torch in float32, and a
    runtime that answers otherwise is refused.

    Attributes:
        difference: the largest difference of a logit from torch in float32 that was seen so far.
    """

    CHECKED = 8  # views

    def __init__(self, source: Classifier, runtime: Runtime, precision: Precision) -> None:
        super().__init__(source.model, **options_of(source))
        self.channels_last = source.channels_last
        self.runtime, self.precision = runtime.name, precision
        self.own_threads, self.shares_features = runtime.own_threads, runtime.shares_features
        self.difference = 0.0
        self._runtime = runtime
        self._asked: Precision = precision
        self._sessions: dict[tuple[int, ...], Session] = {}
        self._unchecked = self.CHECKED

    def __getstate__(self) -> dict[str, Any]:
        """Without the sessions: a copy in another process makes its own."""
        return {**self.__dict__, "_sessions": {}}

    def plain(self) -> Classifier:
        """The same classifier in torch, in float32."""
        return Classifier(self.model, **options_of(self))

    def extra_repr(self) -> str:
        return f"runtime={self.runtime}, precision={self.precision}"

    @property
    def runtime_version(self) -> str:
        return self._runtime.version

    def forward(self, images: Tensor) -> Tensor:
        return self.compared(self.checked(images, self.session(images)(images)), lambda: images)

    def of_views(self, views: Views, visible: Tensor) -> Answers:
        return self._runtime.of_views(self, views, visible)

    def session(self, images: Tensor) -> Session:
        """The model made ready for images of this size, once."""
        shape = tuple(images.shape[1:])
        if shape not in self._sessions:
            with running(self), torch.inference_mode(False), torch.no_grad():
                super().forward(torch.zeros(2, *shape, device=device_of(self, images)))
                self._sessions[shape] = self._runtime.prepare(self, shape, self._asked)
        return self._sessions[shape]

    def check(self, images: Tensor) -> None:
        """Compare with torch in float32 on these images; an error that tells how far apart they are."""
        with running(self):
            self._compare(self.checked(images, self.session(images)(images)), images)

    def compared(self, answer: Tensor, views: Callable[[], Tensor]) -> Tensor:
        """The answer to some views; the first that are ever seen are compared with torch in float32."""
        if self._unchecked:
            images = views()[: self._unchecked]
            self._compare(answer[: len(images)], images)
        return answer

    def _compare(self, answer: Tensor, images: Tensor) -> None:
        """Refuse an answer that is too far from that of torch in float32."""
        with running(self):
            truth = super().forward(images.to(device_of(self, images))).float()
        answer = answer.to(truth)
        if answer.shape != truth.shape:
            raise ValueError(
                f"{self._name} answers {tuple(answer.shape)}, not {tuple(truth.shape)}"
            )
        difference = float((answer - truth).abs().max())
        allowed = TOLERANCE[self.precision] * float(truth.abs().max())
        if not difference <= allowed:
            raise ValueError(
                f"{self._name} gives scores that differ by {difference:.3g} from torch in float32, "
                f"more than {allowed:.3g}: it cannot run this model. If the code of the model "
                f"changed, delete its old export in {cache_folder()}"
            )
        self.difference = max(self.difference, difference)
        self._unchecked = max(0, self._unchecked - len(images))

    @property
    def _name(self) -> str:
        return f"the runtime {self.runtime} in {self.precision}"


def options_of(classifier: Classifier) -> dict[str, Any]:
    """Everything that a classifier is made with but the model."""
    normalisation = {}
    if classifier.normalises:
        for name in ("mean", "std"):
            normalisation[name] = getattr(classifier, name).flatten().tolist()
    own = {
        name: getattr(classifier, name) for name in ("class_names", "image_size", "visible_channel")
    }
    return {**own, **normalisation}
