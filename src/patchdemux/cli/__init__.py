"""The command line: a thin shell over the package, one module per group of commands."""

from patchdemux.cli import demo
from patchdemux.cli.app import app, main

__all__ = ["app", "demo", "main"]
