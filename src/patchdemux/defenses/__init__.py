"""How bounds are proved: single-label patch defenses, lifted to many labels."""

from patchdemux.defenses.base import Defense
from patchdemux.defenses.double_masking import DoubleMasking

__all__ = ["Defense", "DoubleMasking"]
