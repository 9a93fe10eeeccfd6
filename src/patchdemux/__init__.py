"""Certified robustness of multi-label image classifiers against adversarial patches."""

from patchdemux.bounds import ScoreBounds
from patchdemux.certify import Certificate, certified, certify, predict, vulnerable
from patchdemux.classifier import Classifier
from patchdemux.defenses import Decision, Defense, DoubleMasking, IntervalBounds, Smoothing
from patchdemux.demux import PatchDemux
from patchdemux.engine import Engine
from patchdemux.footprint import Footprint, SourcePatch
from patchdemux.masks import MaskSet
from patchdemux.metrics import (
    average_precision_per_class,
    exact_worst_case,
    mean_average_precision,
    paper_protocol,
    precision_recall_curve,
)
from patchdemux.threat import PatchThreat

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Classifier",
    "Decision",
    "Defense",
    "DoubleMasking",
    "Engine",
    "Footprint",
    "IntervalBounds",
    "MaskSet",
    "PatchDemux",
    "PatchThreat",
    "ScoreBounds",
    "Smoothing",
    "SourcePatch",
    "average_precision_per_class",
    "certified",
    "certify",
    "exact_worst_case",
    "mean_average_precision",
    "paper_protocol",
    "precision_recall_curve",
    "predict",
    "vulnerable",
]
