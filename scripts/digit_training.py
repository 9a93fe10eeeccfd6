"""What training a network on digit scenes takes, whatever the loss."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from patchdemux import ScoreBounds
from patchdemux.allocator import keep_freed_memory
from patchdemux.data.digits import DigitScenes, digit_scenes
from patchdemux.report.summary import summarize

SCENES_PER_EPOCH = 4096
WARM_UP = 0.15  # of the training, until the rate is at its peak
WEIGHTS = Path(__file__).parents[1] / "src/patchdemux/models/weights"

Loss = Callable[[Tensor, Tensor, float], Tensor]
"""From images, labels and the share of the training that is done to what should be small."""


def options(description: str, weights: str) -> argparse.ArgumentParser:
    """Options that all trainings have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30, help="passes, each over new scenes")
    parser.add_argument("--minutes", type=float, default=14.0, help="end by then, wherever it is")
    parser.add_argument("--seed", type=int, default=0, help="seed of scenes, views and weights")
    parser.add_argument("--output", type=Path, default=WEIGHTS / weights, help="the file to write")
    return parser


def train(
    net: nn.Module, loss_of: Loss, arguments: argparse.Namespace, batch: int, peak: float
) -> None:
    """Train by AdamW. The rate rises, then falls to 0 with the epochs or minutes that end first."""
    keep_freed_memory()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    started, done, epoch = time.perf_counter(), 0.0, 0
    net.train()
    while done < 1:
        # Scenes are cheap to make, so no scene is ever seen in two epochs.
        scenes = digit_scenes(SCENES_PER_EPOCH, "train", arguments.seed * 100_000 + epoch + 1)
        targets = torch.from_numpy(scenes.targets).float()
        losses = []
        for first in range(0, SCENES_PER_EPOCH, batch):
            steps = (epoch + first / SCENES_PER_EPOCH) / arguments.epochs
            seconds = time.perf_counter() - started
            done = max(steps, seconds / (60 * arguments.minutes))
            if done >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = peak * min(done / WARM_UP, (1 - done) / (1 - WARM_UP))
            chosen = slice(first, first + batch)
            loss = loss_of(scenes.images[chosen], targets[chosen], done)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
        done = max(done, epoch / arguments.epochs)
        if losses:
            mean = sum(losses) / len(losses)
            print(f"epoch {epoch:3d}  {done:4.0%}  loss {mean:.4f}  {seconds:4.0f} s", flush=True)
    net.eval()


def save(net: nn.Module, path: Path) -> None:
    """Write the weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, path)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB)")


def figures(bounds: ScoreBounds, scenes: DigitScenes) -> str:
    """The average precisions of held-out scenes, in percent."""
    rows = summarize(bounds, scenes.targets.astype(bool))
    return ", ".join(f"{row.setting} {100 * row.curve.average_precision():.1f}" for row in rows)
