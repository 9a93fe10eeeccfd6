"""The paper's experiments as data: command lines, runs and tables follow from these entries.

The flags are those of the published scripts (inspire-group/PatchDEMUX): 384 pixels and a patch of 55
for the ViT, 448 and 64 for the ResNet, which is what 2% of the image's area means at either size;
MS-COCO val2014 and PASCAL VOC 2007 test; the threshold 0.8 and 2,000 images for the runtime.
"""

from __future__ import annotations

from types import MappingProxyType

from patchdemux.metrics.curves import Setting
from patchdemux.reproduce.entries import Architecture, Experiment, Photos, Variant

VIT = Architecture(
    "q2l-cvt",
    "Query2Label CvT-w24",
    384,
    "the checkpoint Q2L-CvT_w24-384 for MS-COCO of the Query2Label project (checkpoint.pkl), or one "
    "fine-tuned from it",
    "weights/q2l-cvt.pkl",
)
RESNET = Architecture(
    "tresnet_l",
    "TResNet-L",
    448,
    "the checkpoint MS_COCO_TRresNet_L_448_86.6.pth of the ASL project (asymmetric loss), or one "
    "fine-tuned from it",
    "weights/tresnet_l.pth",
)
VIT_VOC = Architecture(
    "q2l-cvt",
    "Query2Label CvT-w24",
    384,
    "weights with 20 classes; no public file is known: fine-tune the MS-COCO checkpoint "
    "Q2L-CvT_w24-384 on PASCAL VOC 2007 trainval",
    "weights/q2l-cvt-voc.pth",
)
COCO = Photos(
    "MS-COCO 2014: the validation images (val2014.zip) and the annotations "
    "(annotations_trainval2014.zip) from the COCO site",
    "annotations/instances_val2014.json, and the photos in val2014, images/val2014 or val2014.zip",
    "data/coco2014",
    MappingProxyType({"split": "val2014"}),
)
VOC = Photos(
    "PASCAL VOC 2007: the annotated test data (VOCtest_06-Nov-2007.tar) from the challenge's site",
    "VOC2007/JPEGImages, VOC2007/Annotations and VOC2007/ImageSets/Main/test.txt, as unpacked",
    "data/VOCdevkit",
    MappingProxyType({"year": "2007", "split": "test"}),
)

MAIN: tuple[Setting, ...] = ("undefended", "defended", "certified", "location")
ATTACKERS: tuple[Setting, ...] = ("certified", "location", "location-fn", "location-fp")
SWEPT: tuple[Setting, ...] = ("defended", "certified", "location")
ONE = (Variant("6 x 6 masks, 2% patch"),)


def grids(*rows: int) -> tuple[Variant, ...]:
    """Variants with other numbers of masks."""
    return tuple(Variant(f"{n} x {n} masks", masks=n) for n in rows)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "vit",
            "Main results of the ViT on MS-COCO: undefended, defended and certified.",
            "the main results of the ViT",
            VIT,
            COCO,
            ONE,
            MAIN,
        ),
        Experiment(
            "resnet",
            "Main results of the ResNet on MS-COCO: undefended, defended and certified.",
            "the main results of the ResNet",
            RESNET,
            COCO,
            ONE,
            MAIN,
        ),
        Experiment(
            "attackers",
            "Location-aware certification against attackers with different aims.",
            "the comparison of attackers",
            VIT,
            COCO,
            ONE,
            ATTACKERS,
        ),
        Experiment(
            "finetuning",
            "Defense fine-tuning: checkpoints trained with and without cutout, compared.",
            "the comparison of defense fine-tunings",
            VIT,
            COCO,
            (
                Variant("vanilla", checkpoint="vanilla", training="as published"),
                Variant(
                    "random cutout",
                    checkpoint="random-cutout",
                    training="fine-tuned with two random squares of half the image's side hidden",
                ),
                Variant(
                    "greedy cutout 6 x 6",
                    checkpoint="greedy-cutout-6x6",
                    training="fine-tuned with the worst pair of 6 x 6 masks hidden",
                ),
                Variant(
                    "greedy cutout 3 x 3",
                    checkpoint="greedy-cutout-3x3",
                    training="fine-tuned with the worst pair of 3 x 3 masks hidden",
                ),
            ),
            MAIN,
        ),
        Experiment(
            "voc",
            "Results on PASCAL VOC 2007: undefended, defended and certified.",
            "the results on PASCAL VOC",
            VIT_VOC,
            VOC,
            ONE,
            MAIN,
        ),
        Experiment(
            "masks",
            "Average precision against the number of masks, from 2 x 2 to 7 x 7.",
            "the comparison of mask numbers",
            VIT,
            COCO,
            grids(2, 3, 4, 5, 6, 7),
            SWEPT,
            key_recalls=False,
            axis="masks",
        ),
        Experiment(
            "patch-size",
            "Average precision against the size of the patch, from 0.5% to 32% of the image.",
            "the comparison of patch sizes",
            VIT,
            COCO,
            tuple(Variant(f"{share} patch", patch=share) for share in ("0.5%", "2%", "8%", "32%")),
            SWEPT,
            key_recalls=False,
            axis="patch",
        ),
        Experiment(
            "runtime",
            "Median time per image, undefended and defended for one label and for all.",
            "the comparison of runtimes",
            VIT,
            COCO,
            grids(2, 4, 6),
            axis="masks",
            images=2000,
            threshold=0.8,
        ),
    )
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
