"""Defenses by name: of this package, of other packages, on the command line, in runs and reports."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import guide
from patchdemux import Defense, DoubleMasking, PatchDemux, PatchThreat
from patchdemux.cli import app
from patchdemux.data.tensors import TensorSet
from patchdemux.defenses import available, make_defense
from patchdemux.defenses.registry import GROUP, defense_class, name_of
from patchdemux.report.page import render_page
from patchdemux.report.report import run_page
from patchdemux.runs import Run, RunError, evaluate, plan
from test_defenses import ROWS
from tiny import TinyNet, tiny_images

SIZE = (6, 10)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The guide's example, installed as another package would be."""
    site = tmp_path / "site"
    record = site / "strips_of_the_guide-1.0.dist-info"
    record.mkdir(parents=True)
    (site / "strips_of_the_guide.py").write_text(guide.source())
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: strips-of-the-guide\nVersion: 1.0\n"
    )
    (record / "entry_points.txt").write_text(
        f"[{GROUP}]\nstrips = strips_of_the_guide:Strips\n"
        "lost = no_such_module:Lost\nodd = strips_of_the_guide:np\n"
    )
    monkeypatch.syspath_prepend(site)
    return record


def images(count=3, classes=3):
    pixels = tiny_images(count, SIZE, 5)
    labels = np.random.default_rng(0).random((count, classes)) < 0.5
    return TensorSet(pixels, labels, [f"class {c}" for c in range(classes)], "tiny")


# --- the guide -----------------------------------------------------------------------------------


def test_the_examples_of_the_guide_run(capsys):
    names = {}
    blocks = list(guide.examples(guide.PAGE))
    for block in blocks:
        exec(compile(block, str(guide.PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "DoubleMasking(masks=(3, 2), center='median', guard='recall')" in printed
    assert "256 views against a set of 2 patches of 7 x 7 pixels" in printed
    assert "patch of 19 shapes within 44 x 44 pixels, at most 1,024 pixels each" in printed


def test_the_example_is_short_and_stands_in_the_table():
    assert len(guide.source().splitlines()) < 40
    assert any(row.defense().__class__ is guide.example() for row in ROWS)


def test_every_defense_of_the_package_is_in_the_table_and_in_the_guide():
    classes = {type(row.defense()) for row in ROWS}
    page = guide.PAGE.read_text("utf-8")
    for name, place in available().items():
        if place.startswith("patchdemux."):
            assert defense_class(name) in classes, f"{name} has no row in tests/test_defenses.py"
            assert f"| `{name}` |" in page, f"{name} is not in docs/defenses.md"


# --- by name -------------------------------------------------------------------------------------


def test_a_defense_of_another_package_is_found_by_its_name(installed):
    assert available()["strips"] == "strips_of_the_guide:Strips"
    defense = make_defense("strips", {"strips": 3})
    assert isinstance(defense, Defense)
    assert (repr(defense), name_of(defense)) == ("Strips(strips=3)", "strips")
    with pytest.raises(ImportError, match="no_such_module"):
        make_defense("lost")
    with pytest.raises(ValueError, match="odd is said to be strips_of_the_guide:np, which is no"):
        make_defense("odd")


def test_a_name_of_this_package_cannot_be_taken(installed):
    (installed / "entry_points.txt").write_text(f"[{GROUP}]\ndouble-masking = json:JSONDecoder\n")
    assert make_defense("double-masking") == DoubleMasking()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("triple", {}, "there is no defense 'triple'; there are: double-masking"),
        (
            "double-masking",
            {"mask": 3},
            "double-masking has no setting 'mask'; its settings are: masks, center, guard",
        ),
        ("double-masking", {"masks": "many"}, "masks must be one integer or"),
        ("double-masking", {"center": "mean"}, "center must be one of"),
    ],
)
def test_names_and_settings_that_there_are_not(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_defense(name, settings)


# --- before anything is run ------------------------------------------------------------------------


class Never(torch.nn.Module):
    def forward(self, images):
        raise AssertionError("the model was run")


@dataclass(frozen=True)
class OnePatch(DoubleMasking):
    """As any defense that says nothing of several patches."""

    most_patches = 1
    check = Defense.check


def refused(message, threat, defense):
    demux = PatchDemux(Never(), threat, defense)
    pixels, data = torch.zeros(1, 1, *SIZE), images()
    for call in (
        lambda: demux.bounds(pixels),
        lambda: demux(pixels),
        lambda: demux.decide(pixels),
        lambda: demux.certify(pixels, np.zeros((1, 3))),
        lambda: plan(demux, data),
        lambda: evaluate(demux, data, "never-written"),
        lambda: PatchDemux(Never(), threat, defense, SIZE),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_threat_that_cannot_be_proved_is_refused_before_the_model_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two = PatchThreat(1, 2, count=2)
    refused(
        "OnePatch proves one patch or several.*, not a set of 2 patches of 1 x 2", two, OnePatch()
    )
    refused("a patch of 7 x 1 pixels does not fit into an", PatchThreat(7, 1), guide.example()())
    with pytest.raises(
        ValueError, match="2 patches take 1,091,059 views per image and 2,628 unions"
    ):
        PatchDemux(Never(), two, DoubleMasking((9, 8)), 224)
    assert not list(tmp_path.iterdir())


# --- runs and reports ------------------------------------------------------------------------------


def test_a_run_makes_the_defense_of_another_package_again(installed, tmp_path):
    model, data = TinyNet(SIZE, 3, 0), images()
    demux = PatchDemux(model, PatchThreat(2, 1), make_defense("strips", {"strips": 3}))
    run = evaluate(demux, data, tmp_path / "run")
    again = PatchDemux.from_run(Run.open(tmp_path / "run"), model)
    assert again.defense == demux.defense
    np.testing.assert_array_equal(again(data.images), run.bounds(0).defended)
    np.testing.assert_array_equal(run.boxes, demux.defense.region_boxes(SIZE, demux.threat))
    assert "Strips(strips=3)" in render_page(run_page(run))
    (installed / "entry_points.txt").unlink()
    with pytest.raises(RunError, match=r"there is no defense 'strips'.*; give it: from_run"):
        PatchDemux.from_run(run, model)


@pytest.mark.parametrize(
    "threat",
    [PatchThreat(1, 2, count=2), PatchThreat.rectangles(4, (0.25, 4), SIZE)],
    ids=["two patches", "shapes"],
)
def test_a_run_against_several_patches_or_shapes(tmp_path, threat):
    model, data = TinyNet(SIZE, 3, 0), images()
    demux = PatchDemux(model, threat, DoubleMasking((2, 2)), fill="mean")
    cost = plan(demux, data, batch_size=8)
    assert (cost.views_per_image, cost.regions) == ((16, 10) if threat.count == 2 else (11, 4))
    run = evaluate(demux, data, tmp_path / "run", batch_size=8)
    assert run.threat == threat
    assert run.attributes["fill"] == "mean"
    assert (run.boxes is None) == (threat.count == 2)
    stored, truth = run.bounds(0), demux.bounds(data.images)
    for name in ("defended", "lower", "upper"):
        np.testing.assert_allclose(getattr(stored, name), getattr(truth, name), atol=1e-5)
    again = PatchDemux.from_run(run, model)
    assert (again.engine.fill, again.threat) == ("mean", threat)
    page = " ".join(render_page(run_page(run)).split())
    assert f"against one {threat}" in page
    text = (
        "2 rectangles of at most this size" if threat.count == 2 else "at most one of these shapes"
    )
    assert text in page
    assert evaluate(demux, data, tmp_path / "run", batch_size=8).complete  # resumed


# --- the command line ------------------------------------------------------------------------------


def test_the_list_of_defenses(installed):
    text = invoke("defenses", "--size", "224")
    assert text.exit_code == 0, text.output
    assert "double-masking\n  proves one patch or several" in text.stdout
    assert "  667 views per image\n  needs any classifier\n  settings (--set): masks" in text.stdout
    listed = {entry["name"]: entry for entry in json.loads(invoke("defenses", "--json").stdout)}
    assert listed["double-masking"]["views"] == 667
    assert listed["double-masking"]["settings"] == ["masks", "center", "guard"]
    assert (listed["strips"]["views"], listed["strips"]["threat"]) == (5, "one patch")
    assert listed["strips"]["needs"] == "a classifier that recognises strips"
    assert "no_such_module" in listed["lost"]["problem"]
    assert "which is no Defense" in listed["odd"]["problem"]
    two = json.loads(invoke("defenses", "--json", "--patches", "2", "--size", "64").stdout)
    two = {entry["name"]: entry for entry in two}
    assert two["double-masking"]["views"] == 66712
    assert (two["strips"]["views"], two["strips"]["problem"]) == (None, "proves at most 1")


def test_a_run_with_another_defense(installed, tmp_path):
    options = ("--defense", "strips", "--set", "strips=3", "--batch-size", "16", "--patch", "4px")
    result = invoke("evaluate", "digits:2", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    assert "Strips(strips=3)" in result.stdout
    assert Run.open(tmp_path / "run").defense == "Strips(strips=3)"
    for given, message in (
        (("--masks", "3"), "strips has no setting 'masks'; its settings are: strips"),
        (("--set", "strips"), "--set must be as masks=[6,4]"),
        (("--patches", "2"), "Strips proves one patch, not a set of 2 patches of 4 x 4"),
    ):
        result = invoke("evaluate", "digits:2", tmp_path / "other", *options, *given)
        assert message in str(result.exception), result.output


def test_very_many_views_are_announced_and_want_to_be_confirmed(tmp_path):
    options = ("--patches", "2", "--patch", "1%")
    result = invoke("evaluate", "digits:2", tmp_path / "run", *options)
    message = "this takes 66,712 forward passes per image, 133,424 in all; say --yes to run it"
    assert message in str(result.exception)
    assert not (tmp_path / "run").exists()
    confirmed = invoke("evaluate", "digits:2", tmp_path / "run", *options, "--masks", "2", "--yes")
    assert confirmed.exit_code == 0, confirmed.output
    assert Run.open(tmp_path / "run").attributes["views_per_image"] == 16


def test_hidden_pixels_filled_with_the_mean(tmp_path):
    options = ("--masks", "2", "--fill", "mean", "--batch-size", "16")
    result = invoke("evaluate", "digits:2", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    assert Run.open(tmp_path / "run").attributes["fill"] == "mean"


def test_masks_for_many_shapes(tmp_path):
    arguments = ("masks", "--size", "64", "--patch", "8px", "--output", tmp_path / "masks.png")
    shapes = invoke(*arguments, "--ratios", "0.5-2", "--covers", "10x6px", "--json")
    assert shapes.exit_code == 0, shapes.output
    answer = json.loads(shapes.stdout)
    assert answer["patch"]["shapes"] == [[6, 10], [7, 9], [8, 8], [9, 7], [10, 6]]
    text = invoke(*arguments, "--ratios", "0.5-2").stdout
    assert "8px is a patch of 5 shapes within 10 x 10 pixels" in text
    two = invoke(*arguments, "--patches", "2", "--masks", "3")
    assert "256 forward passes per image" in two.stdout
    assert "--ratios must be as 0.5-2" in str(invoke(*arguments, "--ratios", "2").exception)
