"""What is audited: some images of a run, and what was stored of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.attack.attack import size_of
from patchdemux.bounds import ScoreBounds
from patchdemux.certify import certified
from patchdemux.demux import PatchDemux
from patchdemux.inputs import logit


@dataclass(frozen=True, eq=False)
class Target:
    """Some images of a run, and what was stored of them.

    Attributes:
        demux: the defended classifier.
        images, names, class_names, targets: the images and their labels.
        stored: the stored bounds, widened by the margin.
        margin: of the run.
        threshold: a probability; labels that are certified there are attacked.
        folder: where what breaks a certificate is kept; None for nowhere.
    """

    demux: PatchDemux
    images: Tensor
    names: Sequence[str]
    class_names: Sequence[str]
    targets: Bool[np.ndarray, "image class"]
    stored: ScoreBounds
    margin: float
    threshold: float
    folder: Path | None

    @property
    def boxes(self) -> Int[np.ndarray, "region 4"] | None:
        """The regions of the defense."""
        return self.demux.defense.region_boxes(size_of(self.images), self.demux.threat)

    @property
    def safe(self) -> Bool[np.ndarray, "image class"]:
        """The labels that are certified."""
        return certified(self.stored, self.targets, logit(self.threshold))


def apart(
    first: Float[np.ndarray, "*shape"], second: Float[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """How far two scores lie apart, in double precision; equal infinities not at all."""
    wide, other = first.astype(np.float64), second.astype(np.float64)
    same = wide == other
    gap = np.abs(np.where(same, 0.0, wide) - np.where(same, 0.0, other))
    return np.asarray(np.where(np.isnan(gap), np.inf, gap))
