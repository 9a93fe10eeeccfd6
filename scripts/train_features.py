"""Train a network on digit scenes for feature masking, and write its weights.

As in `train_demo.py`, each step learns from the worst of several views of every label; here, what is
hidden are two squares of the output of the front, as large as the masks of the defense.
"""

import torch
from digit_training import figures, options, save, train
from torch import Tensor
from train_demo import worst_view_loss

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.data.digits import IMAGE_SIZE, digit_scenes
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.models.digit_cells import split_net
from patchdemux.receptive_field import measured

BATCH = 64
PEAK_RATE = 4e-3
PATCHES = (0.01, 0.02, 0.04)


def main() -> None:
    parser = options(__doc__.splitlines()[0], "digits_features.safetensors")
    parser.add_argument("--patch", type=float, default=0.02, help="share of the image")
    parser.add_argument("--held-out", type=int, default=100, help="scenes to measure on")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    net, defense = split_net(), FeatureMasking("front")
    front, back = net
    threat = PatchThreat.from_area(arguments.patch, IMAGE_SIZE)
    _, field = measured(Classifier(net), "front", IMAGE_SIZE)
    masks = defense.of_features.mask_set(field.grid, defense.feature_threat(field, threat))
    side = int(masks.boxes[0, 2])
    print(f"a feature sees {field.size} pixels; {masks}")

    def loss_of(images: Tensor, labels: Tensor, done: float) -> Tensor:
        return worst_view_loss(back, front(images), labels, side)

    train(net, loss_of, arguments, BATCH, PEAK_RATE)
    save(net, arguments.output)

    scenes = digit_scenes(arguments.held_out, "validation", arguments.seed)
    for patch in PATCHES:
        threat = PatchThreat.from_area(patch, IMAGE_SIZE)
        demux = PatchDemux(Classifier(net), threat, defense)
        print(f"patch {patch:.0%}: {figures(demux.bounds(scenes.images), scenes)}")


if __name__ == "__main__":
    main()
