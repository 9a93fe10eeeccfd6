"""Audits: an honest run passes, and every fault that is planted is found and named."""

import json
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import zarr
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from patchdemux import Classifier, DoubleMasking, MaskSet, PatchDemux, PatchThreat, ScoreBounds
from patchdemux.audit import audit
from patchdemux.audit.attacked import corners
from patchdemux.audit.stored import check_curves, uncovered
from patchdemux.audit.target import apart
from patchdemux.bounds import median
from patchdemux.cli import app
from patchdemux.cli.attack import FALSIFIED
from patchdemux.data.tensors import TensorSet
from patchdemux.defenses import Defense, make_defense
from patchdemux.engine import Engine, shown
from patchdemux.runs import Run, evaluate
from patchdemux.runs.store import SCORES
from test_brute_force import Holed
from tiny import TinyLocalNet, TinyNet, tiny_images

SIZE, THREAT, CLASSES = (10, 9), PatchThreat(3, 3), ("ant", "bee", "cat")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks as tiny as these only wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scenes(count=6):
    random = np.random.default_rng(1)
    targets = random.random((count, len(CLASSES))) < 0.5
    return TensorSet(tiny_images(count, SIZE, 2), targets, CLASSES, "tiny")


def tiny(defense=None, seed=3, **options):
    model = Classifier(TinyNet(SIZE, len(CLASSES), seed=seed), class_names=CLASSES)
    return PatchDemux(model, THREAT, defense or DoubleMasking((2, 2)), batch_size=16, **options)


class Smooth(nn.Module):
    """Weights that are no small integers, so that the order of a sum and the precision matter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(SIZE[0] * SIZE[1], 40)
        self.last = nn.Linear(40, len(CLASSES))

    def forward(self, images):
        return self.last(torch.relu(self.first(images.flatten(1))))


def audited(path, demux, data=None, **options):
    data = data or scenes()
    given = {"seconds": 0, "folder": path.parent / "falsified", **options}
    return audit(Run.open(path), demux, data, **given)


def run_of(path, demux, data=None):
    evaluate(demux, data or scenes(), path)
    return path


def kinds(result):
    return {finding.kind for finding in result.findings}


def tamper(path, name, change):
    array = zarr.open_group(path, mode="r+")[name]
    array[...] = change(array[...])


# --- honest runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("center", ["median", "undefended"])
@pytest.mark.parametrize("guard", ["both", "recall", "precision"])
def test_an_honest_run_passes_and_says_what_was_tried(tmp_path, center, guard):
    demux = tiny(DoubleMasking((2, 2), center, guard))
    path = run_of(tmp_path / "run", demux)
    result = audited(path, demux, long=True)
    assert result.findings == ()
    assert result.passed
    words = " ".join(result.tried)
    assert "4 regions: every place of a patch of 3 x 3 pixels looked up" in words
    assert "6 images computed again in 8 sizes of batches" in words
    assert "18 patches on 6 images" in words
    assert "by gradient attack" in words
    assert "proved" not in words
    assert not (tmp_path / "falsified").exists()


def test_a_model_without_gradients_is_attacked_by_squares(tmp_path):
    net = Smooth()

    def remote(images):
        with torch.no_grad():
            return net(images).clone()

    demux = PatchDemux(remote, THREAT, DoubleMasking((2, 2)), batch_size=16)
    path = run_of(tmp_path / "run", demux)
    result = audited(path, demux, sample=2)
    assert result.passed
    assert "by square attack" in " ".join(result.tried)


def test_real_numbers_pass_within_the_margin_and_the_seed_decides(tmp_path):
    demux = PatchDemux(Smooth(), THREAT, DoubleMasking((3, 2)), batch_size=16)
    path = run_of(tmp_path / "run", demux)
    assert audited(path, demux, sample=3, seed=5).passed


@pytest.mark.parametrize(
    ("name", "settings", "threat"),
    [
        ("smoothing", {"width": 3, "stride": 2}, THREAT),
        ("interval-bounds", {}, THREAT),
        ("local-votes", {"layer": "local"}, THREAT),
        ("robust-masking", {"layer": "local"}, THREAT),
        ("feature-masking", {"layer": "local.0", "masks": (2, 2)}, THREAT),
        ("double-masking", {"masks": (2, 2)}, PatchThreat(2, 2, count=2)),
        ("double-masking", {"masks": (2, 2)}, PatchThreat(3, 3, shapes=((2, 3), (3, 2)))),
    ],
)
def test_honest_runs_of_every_defense_pass(tmp_path, name, settings, threat):
    local = TinyLocalNet(len(CLASSES), seed=3).local
    layers = {"local": local, "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    model = Classifier(nn.Sequential(OrderedDict(layers)), class_names=CLASSES)
    demux = PatchDemux(model, threat, make_defense(name, settings), SIZE, batch_size=16)
    path = run_of(tmp_path / "run", demux, scenes(3))
    result = audited(path, demux, scenes(3), sample=2)
    assert result.findings == ()
    assert "patches on 2 images" in " ".join(result.tried)


# --- planted faults ---------------------------------------------------------------------------


def test_stored_masks_that_are_a_pixel_too_small(tmp_path):
    demux = tiny()
    path = run_of(tmp_path / "run", demux)
    tamper(path, "box", lambda boxes: boxes - [0, 0, 1, 0])
    result = audited(path, demux)
    assert kinds(result) == {"coverage"}
    assert "lies inside no stored region" in result.findings[0].what
    assert [finding.region for finding in result.findings[1:]] == [0, 1, 2, 3]


@dataclass(frozen=True)
class TooSmall(DoubleMasking):
    """Claims the right regions, and hides a pixel less at the lower edge."""

    def mask_set(self, image_size, threat):
        whole = MaskSet.covering(image_size, threat, self.masks)
        return Holed(whole.image_size, threat, whole.boxes - [0, 0, 1, 0])

    def region_boxes(self, image_size, threat):
        return MaskSet.covering(image_size, threat, self.masks).boxes


def test_a_defense_whose_masks_are_a_pixel_too_small(tmp_path):
    demux = tiny(TooSmall((2, 2)))
    path = run_of(tmp_path / "run", demux)
    result = audited(path, demux)
    assert "region" in kinds(result)
    assert kinds(result) <= {"region", "attack"}
    for finding in result.findings:
        assert finding.image in scenes().names
        assert finding.label in CLASSES
        with Image.open(finding.patch) as patch:
            assert patch.size == (3, 3)
        with Image.open(finding.picture) as picture:
            assert picture.size == SIZE[::-1]


def test_a_fill_that_leaks(tmp_path, monkeypatch):
    honest = Engine._views

    def leaking(self, images, visible, owners, masks, device):
        views = honest(self, images, visible, owners, masks, device)
        hidden = 1 - shown(visible, masks)
        return views + 0.25 * images[owners] * hidden

    monkeypatch.setattr(Engine, "_views", leaking)
    demux = tiny()
    path = run_of(tmp_path / "run", demux)
    result = audited(path, demux)
    assert "leak" in kinds(result)
    first = next(finding for finding in result.findings if finding.kind == "leak")
    assert "what is hidden shows through" in str(first)
    assert "patch " in str(first)


@pytest.mark.parametrize("name", ["lower", "upper"])
def test_bounds_off_by_one_mask(tmp_path, name):
    demux = tiny()
    path = run_of(tmp_path / "run", demux)
    tamper(path, name, lambda bounds: np.roll(bounds, 1, axis=1))
    result = audited(path, demux)
    assert "recomputed" in kinds(result)
    wrong = [finding for finding in result.findings if finding.kind == "recomputed"]
    assert all(finding.what.startswith(f"{name} was") for finding in wrong)
    assert {finding.region for finding in wrong} <= {0, 1, 2, 3}


@dataclass(frozen=True)
class SinglesOnly(Defense):
    """Takes what one mask alone says for a bound; a patch elsewhere moves the median at will."""

    def region_boxes(self, image_size, threat):
        return MaskSet.covering(image_size, threat, (2, 2)).boxes

    def bounds(self, engine, images, threat):
        masks = MaskSet.covering(images.shape[-2:], threat, (2, 2))
        views = np.arange(len(masks))[:, None]
        singles = engine.masked_scores(images, masks.dense(), views)
        defended = median(singles)
        own = defended[:, None]
        lower, upper = np.minimum(singles, own), np.maximum(singles, own)
        return ScoreBounds(engine.scores(images), defended, lower, upper)


def test_a_defense_whose_proof_is_wrong(tmp_path):
    demux = tiny(SinglesOnly(), seed=4)
    path = run_of(tmp_path / "run", demux)
    result = audited(path, demux)
    assert kinds(result) == {"attack"}
    assert "was proved to be within" in result.findings[0].what
    assert all(finding.patch is not None for finding in result.findings)
    assert any(finding.region is not None for finding in result.findings)
    assert any("the certified label turned" in finding.what for finding in result.findings)


@dataclass(frozen=True)
class Surprised(SinglesOnly):
    """Gives up on pixels that are neither black nor white, which no clean image has."""

    def bounds(self, engine, images, threat):
        if ((images != 0) & (images != 1)).any():
            raise ValueError("the bounds contradict the defended score")
        return super().bounds(engine, images, threat)


def test_a_defense_that_fails_on_an_attacked_image(tmp_path):
    demux = tiny(Surprised())
    path = run_of(tmp_path / "run", demux)
    found = [f for f in audited(path, demux).findings if f.kind == "contradiction"]
    assert any(finding.patch and finding.image in scenes().names for finding in found)


def test_certificates_of_bfloat16_used_with_float32(tmp_path):
    demux = PatchDemux(Smooth(), THREAT, batch_size=16, precision="bfloat16")
    path = run_of(tmp_path / "run", demux)
    assert audited(path, demux, sample=2).passed
    run = Run.open(path)
    other = PatchDemux.from_run(run, Smooth(), precision="float32", allow_mismatch=True)
    result = audited(path, other)
    assert "recomputed" in kinds(result)
    assert "more than the margin" in result.findings[0].what


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("defended", lambda scores: scores + 100, "is not within"),
        ("defended", lambda scores: scores * np.nan, "the defended score is nan"),
        ("clean", lambda scores: scores * np.inf, "the clean score is"),
        ("lower", lambda bounds: bounds - np.inf, "the lower bound is -inf"),
        ("lower", lambda bounds: bounds + 100, "is above the ceiling"),
    ],
)
def test_arrays_that_cannot_be(tmp_path, name, change, message):
    demux = tiny()
    path = run_of(tmp_path / "run", demux)
    tamper(path, name, change)
    result = audited(path, demux)
    assert "stored" in kinds(result)
    assert any(message in str(finding) for finding in result.findings)
    assert all(finding.image in scenes().names for finding in result.findings)


def test_other_labels_and_other_images(tmp_path):
    demux, data = tiny(), scenes()
    path = run_of(tmp_path / "run", demux, data)
    tamper(path, "targets", lambda targets: ~targets)
    assert "the data set has other labels" in {f.what for f in audited(path, demux, data).findings}
    with pytest.raises(Exception, match="has no image 'tiny"):
        audited(path, demux, TensorSet(data.images, data.targets, CLASSES, "other"))


# --- the parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [(1, 1), (2, 3), (4, 4)])
def test_coverage_is_as_mask_set_proves_it(masks):
    boxes = MaskSet.covering(SIZE, THREAT, masks).boxes
    assert uncovered(boxes, SIZE, (3, 3)) is None
    for cut in ([0, 0, 1, 0], [0, 0, 0, 1]):
        hole = uncovered(boxes - cut, SIZE, (3, 3))
        with pytest.raises(ValueError, match=f"row {hole[0]}, column {hole[1]} "):
            MaskSet(SIZE, THREAT, boxes - cut)


def test_corners_lie_in_the_regions():
    boxes = MaskSet.covering(SIZE, THREAT, (2, 2)).boxes
    places = corners(boxes, (3, 3), 200, np.random.default_rng(0))
    sides = {
        (int(t + dt), int(left + dl))
        for t, left, h, w in boxes
        for dt in (0, h - 3)
        for dl in (0, w - 3)
    }
    assert {tuple(place) for place in places.tolist()} == sides


def test_how_far_scores_lie_apart():
    inf, nan = np.inf, np.nan
    first, second = np.array([1.0, inf, -inf, nan, 2]), np.array([1.5, inf, inf, 0, inf])
    assert apart(first, second).tolist() == [0.5, 0, inf, inf, inf]


def test_curves_in_the_wrong_order_are_told(monkeypatch):
    demux, data = tiny(), scenes()
    bounds = demux.bounds(data.images)
    assert list(check_curves(bounds, data.targets)) == []
    monkeypatch.setattr(
        "patchdemux.audit.stored.ORDER", ("defended", "exact", "location", "certified")
    )
    assert any("above" in finding.what for finding in check_curves(bounds, data.targets))


# --- the command ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "run"
    result = CliRunner().invoke(app, ["evaluate", "digits:4", str(path), "--masks", "2"])
    assert result.exit_code == 0, result.output
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["audit", *(str(argument) for argument in arguments)])


def test_the_command_tells_what_was_tried(digits):
    result = invoke(digits, "digits:4", "--sample", "2", "--seconds", "0")
    assert result.exit_code == 0, result.output
    assert "nothing broken was found. This is no proof; what was tried:" in result.stdout
    assert "6 patches on 2 images" in result.stdout


def test_the_command_tells_what_is_broken(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = zarr.open_group(digits)["lower"][...]
    tamper(digits, "lower", lambda bounds: np.roll(bounds, 1, axis=1))
    try:
        plain = invoke(digits, "digits:4", "--sample", "3", "--seconds", "0")
        told = invoke(digits, "digits:4", "--sample", "3", "--seconds", "0", "--json")
    finally:
        tamper(digits, "lower", lambda bounds: before)
    assert plain.exit_code == told.exit_code == FALSIFIED
    lines = [line for line in plain.stdout.splitlines() if line.startswith("BROKEN")]
    assert lines[0].startswith("BROKEN recomputed, image digits test ")
    assert ", class " in lines[0]
    assert ", region " in lines[0]
    assert "which --json shows" in lines[-1]
    answer = json.loads(told.stdout)
    assert answer["passed"] is False
    assert len(answer["findings"]) > len(lines)
    assert set(SCORES) & {finding["what"].split()[0] for finding in answer["findings"]} == {"lower"}


def test_help_teaches_with_an_example():
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["audit", "--help"])
    assert result.exit_code == 0
    assert "patchdemux audit runs/digits digits:50" in result.stdout
