"""How bounds are proved: single-label patch defenses, lifted to many labels."""

from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.double_masking import DoubleMasking
from patchdemux.defenses.interval_bounds import IntervalBounds
from patchdemux.defenses.registry import available, make_defense
from patchdemux.defenses.smoothing import Smoothing

__all__ = [
    "Decision",
    "Defense",
    "DoubleMasking",
    "IntervalBounds",
    "Smoothing",
    "available",
    "make_defense",
]
