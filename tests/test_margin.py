"""The numerical margin: measured exactly, stored with a run, taken off its bounds; and from_run."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import zarr
from torch import nn
from typer.testing import CliRunner

from patchdemux import Classifier, DoubleMasking, PatchDemux, PatchThreat, ScoreBounds, certify
from patchdemux.cli import app
from patchdemux.data.base import ImageSet
from patchdemux.inputs import logit
from patchdemux.margin import SAFETY, Margin, measure_margin, views_of
from patchdemux.runs import Run, RunError, evaluate
from patchdemux.runtimes import available
from tiny import TinyNet, tiny_images

SIZE, THREAT = (6, 5), PatchThreat(2, 2)


class Planted(nn.Module):
    """An exact model with something added that depends on the batch."""

    def __init__(self, seed=0, add=lambda images: 0.0):
        super().__init__()
        self.exact = TinyNet(SIZE, 3, seed)
        self.add = add
        self.sizes = []

    def forward(self, images):
        self.sizes.append(len(images))
        return self.exact(images) + self.add(images)


class Dots(ImageSet):
    def __init__(self, count=6):
        self.class_names, self.image_size = ("ant", "bee", "cat"), SIZE
        self.names = tuple(f"{i}.png" for i in range(count))
        self.targets = np.arange(3 * count).reshape(count, 3) % 2 == 0
        self.description = {"source": "dots"}
        self.pixels = tiny_images(count, SIZE, 1)

    def __getitem__(self, index):
        return self.pixels[index]


def defended(add=lambda images: 0.0, seed=0, defense=None, **options):
    options = {"batch_size": 8, **options}
    defense = DoubleMasking((3, 2)) if defense is None else defense
    return PatchDemux(Planted(seed, add), THREAT, defense, **options)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHDEMUX_CACHE", str(tmp_path / "exported"))


# --- measuring ----------------------------------------------------------------------------------


def test_the_margin_of_an_exact_model_is_0():
    margin = measure_margin(defended(), tiny_images(2, SIZE, 0))
    assert margin.value == margin.largest == 0.0
    assert margin.batch_sizes == (1, 5, 8, 16)
    assert (margin.images, margin.views) == (2, 24)
    assert (margin.runtime, margin.precision) == ("torch", "float32")
    assert str(margin) == (
        "0 in the scores of torch in float32: 4 times the largest difference seen, 0 "
        "(24 masked views of 2 images, in batches of 1, 5, 8, 16)"
    )


def places(images):
    return 0.25 * (torch.arange(len(images)) == 3)[:, None]


class Repeats:
    """Something that only time changes."""

    calls = 0

    def __call__(self, images):
        self.calls += 1
        return 0.25 if self.calls == 2 else 0.0


@pytest.mark.parametrize(
    ("add", "planted"),
    [
        (lambda images: 0.125 * (len(images) == 5), 0.125),  # batch sizes
        (lambda images: -4.0 * (len(images) == 1) + 2.0 * (len(images) == 16), 6.0),
        (places, 0.25),  # places in the batch
        (Repeats(), 0.25),
    ],
)
def test_the_margin_is_exactly_the_planted_difference(add, planted):
    margin = measure_margin(defended(add), tiny_images(3, SIZE, 0))
    assert margin.largest == planted
    assert margin.value == SAFETY * planted


def test_places_and_repeats_are_tried_at_one_batch_size_too():
    images = tiny_images(3, SIZE, 0)
    assert measure_margin(defended(places), images, batch_sizes=[6]).largest == 0.25
    assert measure_margin(defended(Repeats()), images, batch_sizes=[200]).largest == 0.25


def test_what_is_measured_are_views_of_the_defense_and_full_batches():
    demux = defended()
    hidden, views = views_of(demux, tiny_images(1, SIZE, 0))
    masks = demux.defense.mask_set(SIZE, THREAT)
    np.testing.assert_array_equal(hidden, masks.dense())
    np.testing.assert_array_equal(views, masks.unions())
    margin = measure_margin(demux, tiny_images(9, SIZE, 0), batch_sizes=[40], views=7)
    assert (margin.images, margin.views, margin.batch_sizes) == (4, 40, (40,))
    assert max(demux.classifier.model.sizes) == 40

    class Whole(DoubleMasking):
        """Looks at nothing but the whole image."""

        def bounds(self, engine, images, threat):
            scores = engine.scores(images)
            return ScoreBounds(scores, scores, scores[:, None] - 1, scores[:, None] + 1)

    margin = measure_margin(defended(defense=Whole()), tiny_images(2, SIZE, 0))
    assert (margin.value, margin.views) == (0.0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "precision"),
    [
        ("torch", "float32"),
        ("torch", "bfloat16"),
        ("openvino", "float32"),
        ("openvino", "bfloat16"),
    ],
)
def test_bounds_from_any_batches_lie_within_the_margin(runtime, precision, cache):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("efficientnet_lite0", num_classes=20).eval()
    source = Classifier(model, mean=[0.5] * 3, std=[0.5] * 3)
    if (runtime, precision) not in available(source):
        pytest.skip("not installed, or the processor does not have it")
    images = torch.rand(3, 3, 96, 96)
    options = {"runtime": runtime, "precision": precision, "batch_size": 32}
    demux = PatchDemux(source, PatchThreat(14, 14), DoubleMasking(4), **options)
    margin = measure_margin(demux, images[:1])
    bounds = demux.bounds(images)
    wide = bounds.widened(margin.value)
    for size in (1, 3, 8, 64):
        other = PatchDemux(demux.classifier, demux.threat, demux.defense, batch_size=size)
        found = other.bounds(images)
        assert (found.lower >= wide.lower).all()
        assert (found.upper <= wide.upper).all()
        assert (abs(found.defended - bounds.defended) <= margin.value).all()


# --- widening -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [1e-9, 0.1, 1 / 3, 1.0])
def test_widened_bounds_are_wider_by_no_less_than_the_margin(dtype, margin):
    random = np.random.default_rng(0)
    center = random.normal(0, 8, (20, 1, 5)).astype(dtype)
    lower, upper = center - random.random((20, 4, 5)), center + random.random((20, 4, 5))
    clean, defended = center[:, 0] + 1, center[:, 0]
    lower[3, 2], upper[5, 1] = -np.inf, np.inf
    bounds = ScoreBounds(clean, defended, lower.astype(dtype), upper.astype(dtype))
    wide = bounds.widened(margin)
    assert wide.lower.dtype == wide.upper.dtype == dtype
    exact = np.longdouble
    assert (wide.lower.astype(exact) <= bounds.lower.astype(exact) - exact(margin)).all()
    assert (wide.upper.astype(exact) >= bounds.upper.astype(exact) + exact(margin)).all()
    np.testing.assert_allclose(wide.lower, bounds.lower - margin, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(wide.clean, clean)
    np.testing.assert_array_equal(wide.defended, defended)


@pytest.mark.parametrize("margin", [-1e-9, float("nan"), float("inf")])
def test_a_margin_must_be_a_number_that_widens(margin):
    bounds = defended().bounds(tiny_images(1, SIZE, 0))
    assert bounds.widened(0) is bounds
    with pytest.raises(ValueError, match="margin must be a finite number, at least 0, but got"):
        bounds.widened(margin)


# --- certifying ---------------------------------------------------------------------------------


def test_certification_moves_the_bounds_by_the_measured_margin_unless_told_otherwise():
    demux, images, targets = defended(by_batch), Dots().pixels, Dots().targets
    bounds = defended(by_batch).bounds(images)
    edge = np.unique(bounds.lower[targets[:, None].repeat(bounds.lower.shape[1], 1)]).tolist()
    changed = 0
    for lowest in edge:
        at = 1 / (
            1 + np.exp(-(lowest - 0.25))
        )  # a threshold that the margin reaches and 0 does not
        for margin, moved in (("measured", 0.5), (0, 0.0), (0.25, 0.25)):
            proof = demux.certify(images, targets, at, margin=margin)
            literal = certify(bounds.widened(moved), targets, logit(at))
            np.testing.assert_array_equal(proof.tp, literal.tp)
            np.testing.assert_array_equal(proof.fp, literal.fp)
        default = demux.certify(images, targets, at).tp.sum()
        assert default <= demux.certify(images, targets, at, margin=0).tp.sum()
        changed += default < demux.certify(images, targets, at, margin=0).tp.sum()
    assert changed


def test_the_margin_is_measured_once():
    demux, dots = defended(by_batch), Dots()
    demux.certify(dots.pixels, dots.targets, margin=0)
    assert demux.margin is None
    demux.certify(dots.pixels, dots.targets)
    assert demux.margin == measure_margin(defended(by_batch), dots.pixels)
    demux.classifier.model.sizes.clear()
    demux.certify(dots.pixels, dots.targets)
    assert 5 not in demux.classifier.model.sizes


# --- runs ---------------------------------------------------------------------------------------


def by_batch(images):
    return 0.125 * (len(images) == 5)


def test_a_run_stores_its_margin_and_takes_it_off_its_bounds(tmp_path):
    run = evaluate(defended(by_batch), Dots(), tmp_path / "run", images_per_chunk=2)
    assert run.margin == 0.5
    stored = Margin(**run.attributes["margin"])
    assert (stored.largest, stored.images, stored.views) == (0.125, 2, 24)
    assert tuple(stored.batch_sizes) == (1, 5, 8, 16)
    as_computed = run.bounds(margin=0)
    np.testing.assert_array_equal(as_computed.lower, defended().bounds(Dots().pixels).lower)
    np.testing.assert_array_equal(run.bounds().lower, as_computed.widened(0.5).lower)
    np.testing.assert_array_equal(run.bounds(1.0).upper, as_computed.widened(1.0).upper)


def test_a_resumed_run_keeps_its_margin(tmp_path):
    def stop(status):
        if status.images_done == 2 and status.stage == "evaluating":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(defended(by_batch), Dots(), tmp_path / "run", images_per_chunk=2, progress=stop)
    demux = defended()
    assert evaluate(demux, Dots(), tmp_path / "run").margin == 0.5
    assert 5 not in demux.classifier.model.sizes


def test_a_run_without_a_margin_says_so(tmp_path):
    evaluate(defended(), Dots(1), tmp_path / "run")
    zarr.open_group(tmp_path / "run", mode="r+").attrs["margin"] = None
    run = Run.open(tmp_path / "run")
    with pytest.raises(RunError, match="has no measured margin; give one: bounds"):
        run.bounds()
    assert len(run.bounds(margin=0)) == 1


def test_the_command_measures_it_too():
    arguments = ["margin", "digits:2", "--masks", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "in the scores of torch in float32: 4 times the largest difference" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--json"])
    answer = json.loads(result.stdout)
    assert 0 <= answer["value"] < 1e-4
    assert answer["batch_sizes"][:2] == [1, 5]


# --- from_run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    defense = DoubleMasking((2, 3), center="undefended", guard="recall")
    demux = defended(defense=defense, fill=0.5, batch_size=7)
    return evaluate(demux, Dots(), tmp_path_factory.mktemp("runs") / "run", images_per_chunk=7)


def test_the_classifier_of_a_run_is_what_the_run_certified(run):
    for given in (run, run.path, str(run.path)):
        demux = PatchDemux.from_run(given, Planted())
        assert demux.threat == THREAT
        assert demux.defense == DoubleMasking((2, 3), center="undefended", guard="recall")
        assert demux.engine.fill == [0.5]
        assert demux.image_size == SIZE
        assert demux.engine.batch.fixed == 7
        assert demux.classifier.class_names == run.class_names
    assert demux.margin == Margin(**{**run.attributes["margin"], "batch_sizes": (1, 5, 7, 16)})
    bounds = demux.bounds(Dots().pixels)
    for name in ("clean", "defended", "lower", "upper"):
        np.testing.assert_array_equal(getattr(bounds, name), getattr(run.bounds(0), name))


def test_normalisation_comes_from_the_run_unless_a_classifier_has_its_own(tmp_path):
    model = Classifier(Planted(), mean=[0.25], std=[0.5])
    demux = PatchDemux(model, THREAT, DoubleMasking(2), batch_size=8)
    run = evaluate(demux, Dots(2), tmp_path / "run")
    again = PatchDemux.from_run(run, Planted())
    np.testing.assert_array_equal(again.bounds(Dots(2).pixels).lower, run.bounds(0).lower)
    with pytest.raises(RunError, match=r"another model: mean was \[0.25\], but is \[0.0\]"):
        PatchDemux.from_run(run, Classifier(Planted()))


class Layers(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(SIZE[0] * SIZE[1], 3))


def test_a_run_records_its_runtime_and_gets_it_back(tmp_path, cache):
    pytest.importorskip("openvino")
    demux = PatchDemux(Layers(), THREAT, DoubleMasking(2), runtime="openvino", batch_size=8)
    run = evaluate(demux, Dots(2), tmp_path / "run")
    assert run.fingerprint["runtime"].startswith("openvino 20")
    assert run.fingerprint["precision"] == "float32"
    assert run.attributes["margin"]["runtime"] == "openvino"
    again = PatchDemux.from_run(run, Layers())
    assert again.classifier.runtime == "openvino"
    np.testing.assert_array_equal(again.bounds(Dots(2).pixels).lower, run.bounds(0).lower)
    text = r"another function: runtime was openvino .*, but is torch.*allow_mismatch=True uses it"
    with pytest.raises(RunError, match=text):
        PatchDemux.from_run(run, Layers(), runtime="torch")
    other = PatchDemux.from_run(run, Layers(), runtime="torch", allow_mismatch=True)
    assert other.classifier.runtime == "torch"
    assert again.margin is not None
    assert other.margin is None  # another runtime has another one
    with pytest.raises(RunError, match="holds a run of something else: runtime was openvino"):
        evaluate(PatchDemux(Layers(), THREAT, DoubleMasking(2)), Dots(2), tmp_path / "run")


def test_another_model_is_refused_always(run):
    for allow in (False, True):
        with pytest.raises(RunError, match="certified another model: weights was sha256"):
            PatchDemux.from_run(run, Planted(seed=1), allow_mismatch=allow)


@dataclass(frozen=True)
class Other(DoubleMasking):
    """A defense that the package does not have."""

    wish: complex = 1j


def test_a_defense_of_ones_own_must_be_given(tmp_path):
    run = evaluate(defended(defense=Other(2)), Dots(2), tmp_path / "run")
    with pytest.raises(
        RunError, match=r"give it: from_run\(run, model, defense=...\), where it was"
    ):
        PatchDemux.from_run(run, Planted())
    assert PatchDemux.from_run(run, Planted(), defense=Other(2)).defense == Other(2)
    with pytest.raises(RunError, match=r"certified Other\(masks=\(2, 2\).*, not Other\(masks=\(3"):
        PatchDemux.from_run(run, Planted(), defense=Other(3))
