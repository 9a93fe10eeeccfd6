"""The command line: a thin shell over the package, one module per group of commands."""

from patchdemux.cli import (
    attack,
    audit,
    defenses,
    demo,
    evaluate,
    finetune,
    images,
    margin,
    masks,
    reading,
    reproduce,
    verify,
)
from patchdemux.cli.app import app, main

__all__ = [
    "app",
    "attack",
    "audit",
    "defenses",
    "demo",
    "evaluate",
    "finetune",
    "images",
    "main",
    "margin",
    "masks",
    "reading",
    "reproduce",
    "verify",
]
