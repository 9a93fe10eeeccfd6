"""The asymmetric loss, image by image."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from patchdemux.training.cutout import Losses
from patchdemux.training.recipe import Recipe


def asymmetric_losses(recipe: Recipe) -> Losses:
    """timm's asymmetric loss (Ridnik et al. 2021), summed over the classes of every image."""
    try:
        from timm.loss.asymmetric_loss import AsymmetricLossMultiLabel
    except ImportError as error:
        raise ImportError("training needs timm: pip install 'patchdemux[train]'") from error
    each = AsymmetricLossMultiLabel(
        recipe.focus_negative, recipe.focus_positive, recipe.clip, reduction="none"
    )

    def losses(logits: Tensor, targets: Tensor) -> Float[Tensor, " image"]:
        loss: Tensor = each(logits, targets)
        return loss.sum(dim=1)

    return losses
