"""Models of timm, torchvision and Hugging Face, with the size and normalisation they were made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.models.loading import load_weights
from patchdemux.threat import Size, as_size


def from_timm(
    model: str | nn.Module,
    *,
    weights: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    image_size: Size | None = None,
) -> Classifier:
    """A timm model, with the size and normalisation of its `pretrained_cfg`.

    Args:
        model: any name that timm knows, or a model that it made.
        weights: a state dict; without one, a model made by name is untrained.
        class_names: a model made by name gets an output for each.
        image_size: height and width, if not those of the `pretrained_cfg`.
    """
    if isinstance(model, str):
        outputs = {} if class_names is None else {"num_classes": len(class_names)}
        model = make_timm(model, image_size, **outputs)
    if weights is not None:
        load_weights(model, weights)
    size, mean, std = timm_input(model)
    size = size if image_size is None else as_size("image_size", image_size)
    return Classifier(model, class_names=class_names, image_size=size, mean=mean, std=std)


def make_timm(name: str, image_size: Size | None = None, **options: Any) -> nn.Module:
    """An untrained timm model; one for images of a fixed size is made for this size."""
    try:
        import timm
    except ImportError as error:
        raise ImportError("timm models need timm: pip install 'patchdemux[models]'") from error
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"{name[:6]}*")[:6])
        raise ValueError(
            f"timm has no model {name!r}" + (f"; it has {close}, ..." if close else "")
        )
    config = timm.get_pretrained_cfg(name)
    if image_size is not None and config is not None and config.fixed_input_size:
        options["img_size"] = as_size("image_size", image_size)
    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def timm_input(model: nn.Module) -> tuple[tuple[int, int], Sequence[float], Sequence[float]]:
    """Size, mean and std of a timm model's input, by its `pretrained_cfg`."""
    from timm.data.config import resolve_model_data_config

    data: dict[str, Any] = resolve_model_data_config(model)
    return data["input_size"][1:], data["mean"], data["std"]


def from_torchvision(
    model: str | nn.Module,
    *,
    weights: str | Path | None = None,
    transforms: Callable[[Tensor], Tensor] | None = None,
    class_names: Sequence[str] | None = None,
) -> Classifier:
    """A torchvision classifier, with the size and normalisation of its transforms.

    Args:
        model: the name of a classification model, or a model.
        weights: a state dict; without one, a model made by name is untrained.
        transforms: from an image to the model's input, such as `ResNet50_Weights.DEFAULT.transforms()`;
            None: those of the default weights of that name. A model without them is given images
            in [0, 1].
        class_names: a model made by name gets an output for each.
    """
    if isinstance(model, str):
        models = _torchvision()
        if model not in models.list_models(module=models):
            raise ValueError(f"torchvision has no classification model {model!r}")
        made: dict[str, Any] = {} if class_names is None else {"num_classes": len(class_names)}
        if model in ("googlenet", "inception_v3"):  # their weights expect pixels as they turn them
            made |= {"transform_input": True, "init_weights": False}
        transforms = transforms or models.get_model_weights(model).DEFAULT.transforms()
        model = cast(nn.Module, models.get_model(model, weights=None, **made))
    if weights is not None:
        load_weights(model, weights)
    wants = {} if transforms is None else wanted_input(transforms)
    return Classifier(model, class_names=class_names, **wants)


def from_hugging_face(
    model: str | Path | nn.Module,
    *,
    processor: Any = None,
    class_names: Sequence[str] | None = None,
) -> Classifier:
    """A Hugging Face image classifier, with its image processor's size and normalisation.

    Its outputs are taken as one logit per class, each for itself: as they are meant with
    `problem_type="multi_label_classification"`.

    Args:
        model: the folder of a saved model and its processor, or a model with `logits` in its answer,
            such as one of `AutoModelForImageClassification`.
        processor: the image processor; None: the one in the folder. A model without one is given
            images in [0, 1].
        class_names: None: the `id2label` of the model's configuration.
    """
    if isinstance(model, str | Path):
        automatic = _transformers()
        folder = Path(model)
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} is no folder of a saved Hugging Face model")
        safely = {"local_files_only": True, "trust_remote_code": False}
        if processor is None and (folder / "preprocessor_config.json").is_file():
            processor = automatic.AutoImageProcessor.from_pretrained(folder, **safely)
        model = automatic.AutoModelForImageClassification.from_pretrained(folder, **safely)
    assert isinstance(model, nn.Module)
    config: Any = getattr(model, "config", None)
    if class_names is None and config is not None:
        class_names = [config.id2label[label] for label in range(config.num_labels)]

    def processed(photo: Tensor) -> Tensor:
        pixels: Tensor = processor(images=photo, return_tensors="pt")["pixel_values"][0]
        return pixels

    wants = {} if processor is None else wanted_input(processed)
    return Classifier(Logits(model), class_names=class_names, **wants)


class Logits(nn.Module):
    """Answers with the `logits` of a Hugging Face model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def wanted_input(preprocess: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What a preprocessing makes of a photo, as options of `Classifier`: size, mean and std.

    They are measured on black, white and gray photos, so that it does not matter how a library
    writes them down. The size is None if it depends on the photo's.
    """
    black, white, gray = (
        preprocess(torch.full((3, 64, 64), value, dtype=torch.uint8)).double()
        for value in (0, 255, 51)
    )
    step = (white - black).mean(dim=(1, 2))
    start = black.mean(dim=(1, 2))
    for level, seen in ((0.0, black), (1.0, white), (0.2, gray)):
        expected = (start + level * step)[:, None, None]
        if not torch.allclose(seen, expected.expand_as(seen), atol=1e-3) or (step <= 0).any():
            raise ValueError(
                "this preprocessing is no normalisation per channel: wrap the model in "
                "Classifier(model, image_size=..., mean=..., std=...) yourself"
            )
    other = preprocess(torch.zeros(3, 96, 96, dtype=torch.uint8))
    size = tuple(black.shape[1:]) if other.shape == black.shape else None
    if torch.allclose(start, torch.zeros_like(start)) and torch.allclose(
        step, torch.ones_like(step)
    ):
        return {"image_size": size}
    return {"image_size": size, "mean": (-start / step).tolist(), "std": (1 / step).tolist()}


def _torchvision() -> Any:
    try:
        from torchvision import models
    except ImportError as error:
        raise ImportError(
            "torchvision models need torchvision: pip install 'patchdemux[models]'"
        ) from error
    return models


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need transformers: pip install 'patchdemux[hf]'"
        ) from error
    return transformers
