"""Patch attacks: how far a classifier falls, and whether its certificates hold."""

from patchdemux.attack.attack import Attack, Attacked, attack
from patchdemux.attack.check import Violation, violations
from patchdemux.attack.universal import load_patch, put, save_patch, universal_patch

__all__ = [
    "Attack",
    "Attacked",
    "Violation",
    "attack",
    "load_patch",
    "put",
    "save_patch",
    "universal_patch",
    "violations",
]
