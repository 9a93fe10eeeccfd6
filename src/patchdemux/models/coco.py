"""The classifier of photos that ships with the package: the 80 classes of MS-COCO."""

from importlib.resources import as_file, files

from patchdemux.classifier import Classifier
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.models.libraries import from_timm

ARCHITECTURE = "efficientnet_lite0"
WEIGHTS = files(__package__) / "weights" / "coco.safetensors"


def coco_classifier() -> Classifier:
    """EfficientNet-Lite0 at 224 x 224 pixels with the weights of the package, ready to classify.

    The file holds them in half precision; they are read into float32.
    """
    try:
        import timm  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the COCO classifier needs timm: pip install 'patchdemux[models]'"
        ) from error
    with as_file(WEIGHTS) as path:
        if not path.is_file():
            raise FileNotFoundError(
                f"the weights of the COCO classifier are missing from this installation: {path}"
            )
        return from_timm(ARCHITECTURE, weights=path, class_names=CLASS_NAMES).eval()
