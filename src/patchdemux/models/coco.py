"""The classifier of photos that ships with the package: the 80 classes of MS-COCO."""

from importlib.resources import as_file, files
from typing import Any

from patchdemux.classifier import Classifier
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models.libraries import make_timm
from patchdemux.models.loading import load_weights

ARCHITECTURE = "tf_efficientnet_lite0"
"""With the padding and the normalisation that its ImageNet weights were trained with."""
IMAGE_SIZE = 224
GRAY = (0.5, 0.5, 0.5)
"""Mean and standard deviation of the pixels that its ImageNet weights were trained with."""

WEIGHTS = files(__package__) / "weights" / "coco.safetensors"


def coco_classifier() -> Classifier:
    """EfficientNet-Lite0 at 224 x 224 pixels with the weights of the package, ready to classify.

    The file holds them in half precision; they are read into float32.
    """
    classifier = untrained()
    with as_file(WEIGHTS) as path:
        if not path.is_file():
            raise FileNotFoundError(
                f"the weights of the COCO classifier are missing from this installation: {path}"
            )
        load_weights(classifier.model, path)
    return classifier.eval()


def untrained(**options: Any) -> Classifier:
    """The same network with random weights; options are timm's, such as `drop_rate` for training."""
    model = make_timm(ARCHITECTURE, num_classes=len(CLASS_NAMES), **options)
    return Classifier(model, class_names=CLASS_NAMES, image_size=IMAGE_SIZE, mean=GRAY, std=GRAY)
