"""The one error of this room."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run that cannot be planned, written or read; the message says why, and what to do."""
