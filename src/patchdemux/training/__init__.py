"""Defense fine-tuning: a classifier that has learned to see past masks can be certified more often."""

from patchdemux.training.finetune import Finetuned, finetune
from patchdemux.training.heads import with_classes
from patchdemux.training.recipe import Recipe

__all__ = ["Finetuned", "Recipe", "finetune", "with_classes"]
