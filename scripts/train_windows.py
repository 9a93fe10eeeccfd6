"""Train a network of digit scenes for de-randomized smoothing, and write its weights.

It is shown windows of the scenes, with a channel that says what is visible. At first every window is
to name the digits of its scene by itself. More and more, only the window counts on which the
certificate depends: with k votes needed and `a` windows touched by a patch, the (k + a)-th best score
of a digit that appears, and the (k - a)-th best of one that does not.
"""

import math

import torch
from digit_training import figures, options, save, train
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from patchdemux import Classifier, Engine, PatchThreat, Smoothing
from patchdemux.data.digits import IMAGE_SIZE, digit_scenes
from patchdemux.defenses.smoothing import vote, votes_needed
from patchdemux.models.digit_net import DigitNet

VIEWS = 16  # windows of a scene in one step
BATCH = 16
PEAK_RATE = 4e-3
PATCH = 0.02  # of the image, for which the training certifies
PATCHES = (0.01, 0.02, 0.04)
SHARES = (0.2, 0.3, 0.4, 0.5)


def main() -> None:
    parser = options((__doc__ or "").partition("\n")[0], "digits_windows.safetensors")
    parser.add_argument("--windows", default="columns", help="columns, rows or blocks")
    parser.add_argument("--width", type=int, default=12, help="pixels across a window")
    parser.add_argument("--stride", type=int, default=4, help="pixels between windows")
    parser.add_argument("--votes", type=float, default=0.4, help="share of the windows to exceed")
    parser.add_argument("--held-out", type=int, default=300, help="scenes to measure on")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    defense = Smoothing(arguments.windows, arguments.width, arguments.stride, arguments.votes)
    net = DigitNet(channels=4)
    visible = torch.from_numpy(~defense.hidden(IMAGE_SIZE)).float()[:, None]
    touched = defense.touched(IMAGE_SIZE, PatchThreat.from_area(PATCH, IMAGE_SIZE))[1]
    most = int(touched.sum(axis=1).max())
    needed = votes_needed(len(visible), defense.votes)

    def loss_of(images: Tensor, labels: Tensor, done: float) -> Tensor:
        shown = visible[torch.randperm(len(visible))[:VIEWS]]
        views = torch.cat([images[:, None] * shown, shown.expand(len(images), -1, -1, -1, -1)], 2)
        logits = net(views.flatten(0, 1)).unflatten(0, (len(images), len(shown)))
        single = binary_cross_entropy_with_logits(logits, labels[:, None].expand_as(logits))
        ranked = logits.sort(dim=1, descending=True).values
        worst = torch.where(
            labels > 0,
            ranked[:, place(needed + most, len(visible), len(shown))],
            ranked[:, place(needed - most, len(visible), len(shown))],
        )
        return (1 - done) * single + done * binary_cross_entropy_with_logits(worst, labels)

    train(net, loss_of, arguments, BATCH, PEAK_RATE)
    save(net, arguments.output)

    scenes = digit_scenes(arguments.held_out, "validation", arguments.seed)
    engine = Engine(Classifier(net, visible_channel=True))
    clean = engine.scores(scenes.images)
    index = torch.arange(len(visible))[:, None].numpy()
    scores = engine.masked_scores(scenes.images, defense.hidden(IMAGE_SIZE), index)
    for patch in PATCHES:
        touched = defense.touched(IMAGE_SIZE, PatchThreat.from_area(patch, IMAGE_SIZE))[1]
        for share in SHARES:
            bounds = vote(scores, touched, votes_needed(len(visible), share), clean)
            print(f"patch {patch:.0%}, votes {share:.0%}: AP {figures(bounds, scenes)}")


def place(rank: int, windows: int, shown: int) -> int:
    """Where a rank among all windows, from 1, is found among those that were shown, from 0."""
    return min(max(math.ceil(rank * shown / windows) - 1, 0), shown - 1)


if __name__ == "__main__":
    main()
