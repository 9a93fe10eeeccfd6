"""One line of an experiment's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One figure, measured and published; precision in percent, time in milliseconds."""

    variant: str
    setting: str
    figure: str
    measured: float
    published: float | None

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.published is None else self.measured - self.published
