"""How bounds are proved: single-label patch defenses, lifted to many labels."""

from patchdemux.defenses.base import Decision, Defense
from patchdemux.defenses.double_masking import DoubleMasking

__all__ = ["Decision", "Defense", "DoubleMasking"]
