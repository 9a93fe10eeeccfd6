"""Counts to curves: precision, recall, average precision, and the exact worst case of a data set."""

from patchdemux.metrics.curves import (
    SETTINGS,
    Curve,
    Setting,
    average_precision_per_class,
    mean_average_precision,
    precision_recall_curve,
    pseudo_scores,
)
from patchdemux.metrics.exact import WorstCase, exact_worst_case
from patchdemux.metrics.protocol import PAPER_THRESHOLDS, PaperRow, paper_protocol

__all__ = [
    "PAPER_THRESHOLDS",
    "SETTINGS",
    "Curve",
    "PaperRow",
    "Setting",
    "WorstCase",
    "average_precision_per_class",
    "exact_worst_case",
    "mean_average_precision",
    "paper_protocol",
    "precision_recall_curve",
    "pseudo_scores",
]
