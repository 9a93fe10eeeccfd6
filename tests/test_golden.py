"""The published implementation's figures, matched exactly."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from conftest import GOLDEN
from patchdemux import DoubleMasking, PatchDemux, PatchThreat, ScoreBounds, certify, predict
from patchdemux.masks import MaskSet, covering_intervals

TABLES = sorted(path.stem for path in GOLDEN.glob("doublemask_*.npz"))
METHODS = {
    "certified": "class",
    "location_worst": "location",
    "location_fn": "location-fn",
    "location_fp": "location-fp",
}


def test_the_golden_files_are_there():
    assert len(TABLES) == 5


def test_masks_along_one_axis():
    for case in json.loads((GOLDEN / "masks_1d.json").read_text()):
        length, patch, masks = case["length"], case["patch"], case["masks"]
        assert covering_intervals(length, patch, masks) == (case["size"], case["starts"])
        grid = MaskSet.covering(length, PatchThreat(patch, patch), (masks, masks))
        assert grid.boxes[: len(case["starts"]), 1].tolist() == case["starts"]


def counts(certificate):
    return np.stack([certificate.tp, certificate.fp, certificate.fn], axis=1)


@pytest.mark.parametrize("name", TABLES)
def test_predictions(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    bounds = ScoreBounds.from_pairs(golden["scores"])
    for threshold, expected in zip(golden["thresholds"], golden["predictions"], strict=True):
        np.testing.assert_array_equal(predict(bounds, threshold), expected)


@pytest.mark.parametrize("figure", METHODS)
@pytest.mark.parametrize("name", TABLES)
def test_certificates_and_attackers(name, figure):
    golden = np.load(GOLDEN / f"{name}.npz")
    bounds = ScoreBounds.from_pairs(golden["scores"])
    for threshold, expected in zip(golden["thresholds"], golden[figure], strict=True):
        certificate = certify(bounds, golden["targets"], threshold, METHODS[figure])
        np.testing.assert_array_equal(counts(certificate), expected)


def test_real_forward_passes():
    golden = np.load(GOLDEN / "forward_16.npz")
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )
    prefix = "param."
    weights = {k.removeprefix(prefix): v for k, v in golden.items() if k.startswith(prefix)}
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    demux = PatchDemux(model, PatchThreat(8, 8), DoubleMasking(masks=(4, 4)), image_size=56)
    images, targets = torch.from_numpy(golden["images"]), golden["targets"]

    clean = torch.sigmoid(torch.from_numpy(demux.bounds(images).clean))
    np.testing.assert_allclose(clean, golden["clean"], atol=1e-6)
    for i, threshold in enumerate(golden["thresholds"]):
        np.testing.assert_array_equal(demux.predict(images, threshold), golden["predictions"][i])
        for figure in ("certified", "location_worst"):
            certificate = demux.certify(images, targets, threshold, METHODS[figure])
            np.testing.assert_array_equal(counts(certificate), golden[figure][i])
