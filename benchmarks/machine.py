"""What every benchmark prints first: the machine and the versions that its figures belong to."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

import patchdemux

LIBRARIES = ("onnxruntime", "openvino", "timm")


def machine(*about: str) -> str:
    """One line for a Markdown page: what was measured, the machine, its load, and versions."""
    versions = [f"patchdemux {patchdemux.__version__}", f"torch {torch.__version__}"]
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    here = [
        f"{os.cpu_count()} cores ({processor()}, {torch.backends.cpu.get_cpu_capability()})",
        f"{torch.get_num_threads()} threads",
        f"Python {platform.python_version()}",
    ]
    return ", ".join([*about, *here, *versions]) + ".\n"


def processor() -> str:
    """Its name, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()
