"""How far a run is: what a progress bar needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["checking images", "evaluating"]


@dataclass(frozen=True)
class Status:
    """How far a run is, with what earlier processes did.

    Attributes:
        stage: first all images are opened once, then they are evaluated.
        images_done: images checked, or evaluated and stored.
        images: their total.
        views_done: forward passes, those of the present chunk included.
        views: their total.
        seconds: since this process began this stage.
        views_per_second: forward passes of this process per second.
    """

    stage: Stage
    images_done: int
    images: int
    views_done: int = 0
    views: int = 0
    seconds: float = 0.0
    views_per_second: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Images evaluated per second, from the forward passes: it moves with every batch."""
        return self.views_per_second * self.images / self.views if self.views else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Time left at the present speed; None as long as that is unknown."""
        if not self.views_per_second:
            return None
        return max(self.views - self.views_done, 0) / self.views_per_second


Report = Callable[[Status], None]


class Meter:
    """Counts the forward passes of one process, and reports."""

    def __init__(self, done: int, images: int, views_per_image: int, report: Report | None) -> None:
        self._done, self._images, self._per_image = done, images, views_per_image
        self._report = report
        self._started = time.perf_counter()
        self._views = 0  # of this process
        self._in_chunk = 0
        self._in_call = 0
        self._tell()

    def batch(self, done: int, total: int) -> None:
        """The engine ran a batch: `done` of the `total` views of one call."""
        self._views += done - self._in_call
        self._in_chunk += done - self._in_call
        self._in_call = 0 if done == total else done
        self._tell()

    def stored(self, images: int) -> None:
        """A chunk of so many images is on disk."""
        self._done += images
        self._in_chunk = 0
        self._tell()

    def _tell(self) -> None:
        if self._report is None:
            return
        seconds = max(time.perf_counter() - self._started, 1e-9)
        status = Status(
            stage="evaluating",
            images_done=self._done,
            images=self._images,
            views_done=self._done * self._per_image + self._in_chunk,
            views=self._images * self._per_image,
            seconds=seconds,
            views_per_second=self._views / seconds,
        )
        self._report(status)
