"""How many views go to the model at once."""

from __future__ import annotations


class BatchSize:
    """The number of views per call of the model: fixed, or found by doubling while that is faster."""

    START = 8
    LIMIT = 1024
    GAIN = 1.03  # a larger batch must be faster by this factor to count as an improvement
    PATIENCE = 2  # doublings without improvement before the best size is kept

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed  # the size that was asked for; None if it is found
        self.size = fixed or self.START
        self._searching = fixed is None
        self._limit = fixed or self.LIMIT
        self._times: list[float] = []  # seconds per view at the present size
        self._best_time, self._best_size, self._failures = float("inf"), self.size, 0

    def took(self, views: int, seconds: float) -> None:
        """Take note of a batch; only full ones count. Each size is timed twice, the first warms up."""
        if not self._searching or views != self.size:
            return
        self._times.append(seconds / views)
        if len(self._times) < 2:
            return
        fastest, self._times = min(self._times), []
        if fastest * self.GAIN < self._best_time:
            self._best_time, self._best_size, self._failures = fastest, self.size, 0
        else:
            self._failures += 1
        if self._failures == self.PATIENCE or self.size * 2 > self._limit:
            self.size, self._searching = min(self._best_size, self._limit), False
        else:
            self.size *= 2

    def at_most(self, size: int) -> None:
        """Search no further than this."""
        if self._searching:
            self._limit = max(1, min(self._limit, size))
            self.size = min(self.size, self._limit)

    def halve(self, error: RuntimeError) -> None:
        """Memory ran out: go on with half the size, for good."""
        if self.size == 1:
            raise MemoryError(
                "memory ran out with a single view per batch; use a smaller image or model"
            ) from error
        self.size = self._limit = self.size // 2
        self._searching, self._times = False, []
