"""Train a network of digit scenes for interval bound propagation, and write its weights.

Each step lets the pixels of a patch at a random place of every scene be anything within a range that
grows to [0, 1], and learns from the worst scores that the intervals allow, more and more of them.
"""

import torch
from digit_training import figures, options, save, train
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from patchdemux import Classifier, IntervalBounds, PatchDemux, PatchThreat
from patchdemux.data.digits import IMAGE_SIZE, digit_scenes
from patchdemux.defenses.intervals import Interval, layers_of, propagate
from patchdemux.models.digit_net import interval_net

BATCH = 64
PEAK_RATE = 2e-3
FULL_RANGE = 0.6  # of the training, until patches take the whole range
MOST = 0.7  # weight of the worst scores, then
PATCHES = (0.01, 0.02, 0.04)


def main() -> None:
    parser = options((__doc__ or "").partition("\n")[0], "digits_intervals.safetensors")
    parser.add_argument("--patch", type=float, default=0.02, help="share of the image")
    parser.add_argument("--stride", type=int, default=6, help="of the regions when measuring")
    parser.add_argument("--held-out", type=int, default=100, help="scenes to measure on")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    side = PatchThreat.from_area(arguments.patch, IMAGE_SIZE).height
    net = interval_net()
    layers = layers_of(net)

    def loss_of(images: Tensor, labels: Tensor, done: float) -> Tensor:
        reach = min(done / FULL_RANGE, 1.0)
        free = reach * somewhere(len(images), side)
        ends = propagate(layers, Interval(images * (1 - free), images * (1 - free) + free), 0.0)
        worst = torch.where(labels > 0, ends.low, ends.high)
        plain = binary_cross_entropy_with_logits(net(images), labels)
        certified = binary_cross_entropy_with_logits(worst, labels)
        return (1 - MOST * reach) * plain + MOST * reach * certified

    train(net, loss_of, arguments, BATCH, PEAK_RATE)
    save(net, arguments.output)

    scenes = digit_scenes(arguments.held_out, "validation", arguments.seed)
    for patch in PATCHES:
        threat = PatchThreat.from_area(patch, IMAGE_SIZE)
        demux = PatchDemux(Classifier(net), threat, IntervalBounds(arguments.stride))
        print(f"patch {patch:.0%}: AP {figures(demux.bounds(scenes.images), scenes)}")


def somewhere(count: int, side: int) -> Tensor:
    """1 inside a square at a random place of each image, 0 outside: (count, 1, height, width)."""
    pixels = torch.arange(IMAGE_SIZE)
    rows, columns = (
        (pixels >= start) & (pixels < start + side)
        for start in torch.randint(IMAGE_SIZE - side + 1, (2, count, 1))
    )
    inside: Tensor = rows[:, :, None] & columns[:, None, :]
    return inside.float()[:, None]


if __name__ == "__main__":
    main()
