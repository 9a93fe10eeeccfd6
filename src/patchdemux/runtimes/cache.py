"""Exported models are kept in a folder, so that exporting is paid for once.

The folder is the environment variable PATCHDEMUX_CACHE, or patchdemux in the user's cache folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from patchdemux.classifier import Classifier
from patchdemux.runtimes.identity import model_fields, sha256


def cache_folder() -> Path:
    """Where exported models are kept."""
    if own := os.environ.get("PATCHDEMUX_CACHE"):
        return Path(own)
    home = Path.home()
    if sys.platform == "win32":
        users = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        users = home / "Library" / "Caches"
    else:
        users = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return users / "patchdemux"


def cached(
    runtime: str,
    version: str,
    classifier: Classifier,
    shape: tuple[int, ...],
    export: Callable[[Path], None],
) -> Path:
    """The folder with the exported model; `export` fills it if it is not there yet.

    Weights, architecture, normalisation, image size and versions decide which one it is. It appears
    under its name only when it is complete.
    """
    fields = {
        **model_fields(classifier),
        "mean": classifier.mean.flatten().tolist(),
        "std": classifier.std.flatten().tolist(),
        "channels_last": classifier.channels_last,
        "shape": shape,
        "versions": (version, torch.__version__),
    }
    key = sha256([repr(fields).encode()]).removeprefix("sha256:")[:32]
    folder = cache_folder() / f"{runtime}-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            export(new)
            try:
                new.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder
