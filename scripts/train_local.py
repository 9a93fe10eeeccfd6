"""Train a network of local scores on digit scenes, for local votes, and write its weights.

It learns from the certificate itself, more and more: from the lowest mean that a patch anywhere can
leave of a digit that appears, and the highest that it can make of one that does not. Both are the
mean with all votes inside one window of the map at an end of their range, and cost no pass.
"""

import torch
from digit_training import figures, options, save, train
from torch import Tensor
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.data.digits import IMAGE_SIZE, digit_scenes
from patchdemux.defenses.local_votes import LocalVotes, RobustMasking
from patchdemux.models.digit_cells import HIGH, LOW, local_net
from patchdemux.receptive_field import measured

BATCH = 64
PEAK_RATE = 4e-3
MOST = 0.8  # weight of the certificate in the end
PATCHES = (0.01, 0.02, 0.04)


def main() -> None:
    parser = options(__doc__.splitlines()[0], "digits_local.safetensors")
    parser.add_argument("--patch", type=float, default=0.02, help="share of the image")
    parser.add_argument("--held-out", type=int, default=300, help="scenes to measure on")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    net = local_net()
    _, field = measured(Classifier(net), "local", IMAGE_SIZE)
    window = field.reach(PatchThreat.from_area(arguments.patch, IMAGE_SIZE))
    print(f"a score sees {field.size} pixels, and a patch changes {window} of {field.grid} cells")

    def loss_of(images: Tensor, labels: Tensor, done: float) -> Tensor:
        votes = net.local(images)
        plain = binary_cross_entropy_with_logits(votes.mean(dim=(2, 3)), labels)
        certified = binary_cross_entropy_with_logits(worst_means(votes, labels, window), labels)
        return (1 - MOST * done) * plain + MOST * done * certified

    train(net, loss_of, arguments, BATCH, PEAK_RATE)
    save(net, arguments.output)

    scenes = digit_scenes(arguments.held_out, "validation", arguments.seed)
    for patch in PATCHES:
        threat = PatchThreat.from_area(patch, IMAGE_SIZE)
        for kind in (LocalVotes, RobustMasking):
            demux = PatchDemux(Classifier(net), threat, kind("local", LOW, HIGH))
            found = figures(demux.bounds(scenes.images), scenes)
            print(f"patch {patch:.0%}, {kind.__name__}: {found}")


def worst_means(votes: Tensor, labels: Tensor, window: tuple[int, int]) -> Tensor:
    """The mean vote after the worst patch: a window of votes moved to the end of their range."""
    share = window[0] * window[1] / (votes.shape[2] * votes.shape[3])
    untouched = votes.mean(dim=(2, 3))[:, :, None] - share * avg_pool2d(votes, window, 1).flatten(2)
    lowest, highest = untouched.amin(2) + share * LOW, untouched.amax(2) + share * HIGH
    return torch.where(labels > 0, lowest, highest)


if __name__ == "__main__":
    main()
