"""The losses of a fine-tuning as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def draw_losses(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the training loss, smoothed, and the held-out loss of every epoch."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'patchdemux[train]'") from error
    steps = [entry for entry in entries if "loss" in entry]
    epochs = [entry for entry in entries if "held_out_loss" in entry]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    if steps:
        numbers = np.array([entry["step"] + 1 for entry in steps])
        losses = np.array([entry["loss"] for entry in steps])
        axes.plot(numbers, losses, alpha=0.25, color="C0")
        window = max(1, len(losses) // 50)
        smooth = np.convolve(losses, np.ones(window) / window, "valid")
        axes.plot(numbers[window - 1 :], smooth, color="C0", label="training")
    if epochs:
        at = [entry["step"] + 1 for entry in epochs]
        axes.plot(at, [entry["held_out_loss"] for entry in epochs], "o-C1", label="held out")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path, dpi=120, format="png")
