"""Train the network of the digit-scenes demo and write its weights.

Each step shows the network a batch of scenes several times, once as they are and otherwise behind
two black squares as large as the defense's masks, and learns from the worst view of every label:
the lowest logit of a digit that appears and the highest of a digit that does not. Those are the
logits on which certification depends.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from patchdemux.allocator import keep_freed_memory
from patchdemux.data.digits import DigitScenes, digit_scenes
from patchdemux.models.digit_net import DigitNet

MASK_SIZE = 17  # of 6x6 masks against a patch of 2% of a scene
MASKED_VIEWS = 3
SCENES_PER_EPOCH = 4096
BATCH = 64
PEAK_RATE = 4e-3
WEIGHTS = Path(__file__).parents[1] / "src/patchdemux/models/weights/digits.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the digit-scenes network and write its weights.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=30, help="passes, each over new scenes")
    parser.add_argument("--seed", type=int, default=0, help="seed of scenes, masks and weights")
    parser.add_argument("--output", type=Path, default=WEIGHTS, help="the file to write")
    arguments = parser.parse_args()

    keep_freed_memory()
    torch.manual_seed(arguments.seed)
    started = time.perf_counter()
    held_out = digit_scenes(1000, "validation", arguments.seed)
    net = DigitNet()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        PEAK_RATE,
        total_steps=arguments.epochs * (SCENES_PER_EPOCH // BATCH),
        pct_start=0.15,
    )
    for epoch in range(1, arguments.epochs + 1):
        # Scenes are cheap to make, so no scene is ever seen in two epochs.
        scenes = digit_scenes(SCENES_PER_EPOCH, "train", arguments.seed * 100_000 + epoch)
        targets = torch.from_numpy(scenes.targets).float()
        net.train()
        total = 0.0
        for batch in range(0, SCENES_PER_EPOCH, BATCH):
            images, labels = scenes.images[batch : batch + BATCH], targets[batch : batch + BATCH]
            loss = worst_view_loss(net, images, labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(images) / SCENES_PER_EPOCH
        plain, masked = held_out_precision(net, held_out)
        print(
            f"epoch {epoch:3d}/{arguments.epochs}  loss {total:.4f}  held-out AP {plain:.2f}, "
            f"masked {masked:.2f}  {time.perf_counter() - started:4.0f} s",
            flush=True,
        )
    weights = {name: value.contiguous() for name, value in net.state_dict().items()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, arguments.output)
    size = arguments.output.stat().st_size / 1e6
    print(f"wrote {arguments.output} ({size:.2f} MB): held-out AP {plain:.2f}, masked {masked:.2f}")


def worst_view_loss(
    net: nn.Module, images: Tensor, labels: Tensor, mask_size: int = MASK_SIZE
) -> Tensor:
    views = [images, *(behind_two_masks(images, mask_size) for _ in range(MASKED_VIEWS))]
    logits = net(torch.cat(views)).unflatten(0, (len(views), -1))
    worst = torch.where(labels > 0, logits.amin(0), logits.amax(0))
    return binary_cross_entropy_with_logits(worst, labels)


def behind_two_masks(images: Tensor, mask_size: int = MASK_SIZE) -> Tensor:
    """Black out two squares of mask size in each image, at random places."""
    rows, columns = (_outside_two_spans(len(images), size, mask_size) for size in images.shape[2:])
    kept = (rows[:, :, :, None] | columns[:, :, None, :]).all(dim=1, keepdim=True)
    return images * kept


def _outside_two_spans(count: int, length: int, mask_size: int) -> Tensor:
    """Say of each pixel of an axis whether it lies outside two random spans: (count, 2, length)."""
    starts = torch.randint(length - mask_size + 1, (count, 2, 1))
    pixels = torch.arange(length)
    return (pixels < starts) | (pixels >= starts + mask_size)


@torch.inference_mode()
def held_out_precision(net: nn.Module, scenes: DigitScenes) -> tuple[float, float]:
    """Return the average precision in percent on scenes as they are and behind random masks."""
    net.eval()
    views = (scenes.images, behind_two_masks(scenes.images))
    plain, masked = (
        100 * average_precision_score(scenes.targets, net(view), average="micro") for view in views
    )
    return plain, masked


if __name__ == "__main__":
    main()
