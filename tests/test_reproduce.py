"""The paper's experiments: dry runs, small runs from end to end, comparison, absent data."""

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from patchdemux import Classifier, DoubleMasking, PatchDemux, PatchThreat, cli
from patchdemux.data import open_dataset
from patchdemux.metrics import paper_protocol, precision_recall_curve
from patchdemux.reproduce import (
    EXPERIMENTS,
    Choices,
    commands,
    experiment,
    jobs_of,
    needs,
    read_published,
    reproduce,
    result,
)
from patchdemux.reproduce.timing import FirstLabel
from patchdemux.runs import RunError

SIZE = 24
SWEEPS = ("masks", "patch-size", "runtime")


class Net(nn.Module):
    """Small, and counts how often it is called."""

    calls = 0

    def __init__(self, classes, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 6, 5, stride=3)
        self.last = nn.Linear(6, classes)

    def forward(self, images):
        Net.calls += 1
        return 6 * self.last(torch.relu(self.first(images)).amax(dim=(2, 3)))


def three():
    return Net(3)


def twenty():
    return Net(20)


def save_photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    Image.fromarray(noise).resize((40, 31)).save(path)


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Five photos with the layout of MS-COCO 2014."""
    root = tmp_path_factory.mktemp("coco2014")
    photos = [{"id": i, "file_name": f"COCO_val2014_{i:012}.jpg"} for i in range(5)]
    for photo in photos:
        save_photo(root / "val2014" / photo["file_name"], photo["id"])
    pairs = [(0, 1), (0, 2), (1, 2), (2, 7), (3, 1), (3, 7), (4, 2)]
    tables = {
        "images": photos,
        "categories": [{"id": i, "name": n} for i, n in ((1, "ant"), (2, "bee"), (7, "cat"))],
        "annotations": [{"image_id": i, "category_id": c} for i, c in pairs],
    }
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val2014.json").write_text(json.dumps(tables))
    return root


@pytest.fixture(scope="module")
def devkit(tmp_path_factory):
    """Four photos with the layout of PASCAL VOC 2007."""
    root = tmp_path_factory.mktemp("voc") / "VOCdevkit"
    names = ("cat", "dog", "person", "sofa")
    (root / "VOC2007" / "ImageSets" / "Main").mkdir(parents=True)
    (root / "VOC2007" / "Annotations").mkdir()
    for place, name in enumerate(names):
        save_photo(root / "VOC2007" / "JPEGImages" / f"{place:06}.jpg", place)
        objects = f"<object><name>{name}</name><difficult>{place % 2}</difficult></object>"
        file = root / "VOC2007" / "Annotations" / f"{place:06}.xml"
        file.write_text(f"<annotation>{objects}</annotation>")
    listing = "".join(f"{place:06}\n" for place in range(len(names)))
    (root / "VOC2007" / "ImageSets" / "Main" / "test.txt").write_text(listing)
    return root


def chosen(coco, output, **more):
    own = {"data": str(coco), "model": "test_reproduce:three", "size": SIZE, "batch_size": 64}
    return Choices(**{**own, "output": output, **more})


def run_cli(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


# --- what there is, and the commands it stands for ------------------------------------------------


def test_list_names_every_experiment_with_a_sentence():
    shown = run_cli("--list")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(line.endswith(".") and len(line.split()) > 5 for line in lines)
    assert json.loads(run_cli("--list", "--json").stdout)["masks"].startswith("Average precision")


def test_the_patches_are_those_of_the_published_scripts():
    for name, size, pixels in (("vit", 384, 55), ("resnet", 448, 64), ("voc", 384, 55)):
        (job,) = jobs_of(experiment(name), Choices())
        assert (job.size, job.threat, job.variant.masks) == (size, PatchThreat(pixels, pixels), 6)
    sweep = jobs_of(experiment("patch-size"), Choices())
    assert [job.variant.patch for job in sweep] == ["0.5%", "2%", "8%", "32%"]
    assert [v.masks for v in experiment("masks").variants] == [2, 3, 4, 5, 6, 7]
    assert [v.masks for v in experiment("runtime").variants] == [2, 4, 6]


def test_dry_run_needs_nothing_and_states_every_flag():
    shown = run_cli("vit", "--dry-run", "--data", "some where", "--weights", "file.pth")
    assert shown.exit_code == 0
    first, second = shown.stdout.splitlines()
    path = "reproduced/runs/some-where-val2014-q2l-cvt-384px-2pct-6x6"
    assert first == (
        f"patchdemux evaluate 'some where' {path} --model q2l-cvt --weights file.pth --size 384 "
        f"--patch 2% --masks 6 --split val2014"
    )
    assert second == f"patchdemux table {path} --protocol paper"
    assert run_cli("attackers", "--dry-run").stdout.endswith("--protocol paper --all\n")
    assert json.loads(run_cli("masks", "--dry-run", "--json").stdout)[0].startswith("patchdemux ev")
    assert "--year 2007 --split test" in run_cli("voc", "--dry-run").stdout
    timed = run_cli("runtime", "--dry-run").stdout.splitlines()
    assert timed[0].startswith("patchdemux reproduce runtime --data data/coco2014 --model q2l-cvt")
    assert timed[1] == "# times PatchDemux.predict with --patch 2% --masks 2 at threshold 0.8"
    assert "--masks" not in timed[0]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_commands_of_a_dry_run_parse(name):
    for module in ("evaluate", "reading"):
        pytest.importorskip(f"patchdemux.cli.{module}")
    program = typer.main.get_command(cli.app)
    choices = Choices(limit=3, batch_size=2, device="cpu", size=32)
    for line in commands(experiment(name), choices):
        if not line.startswith("#"):
            word, command, *arguments = shlex.split(line)
            assert word == "patchdemux"
            program.commands[command].make_context(command, arguments)


# --- from end to end ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masks(coco, tmp_path_factory):
    """The sweep over the number of masks, and where it lies."""
    output = tmp_path_factory.mktemp("masks")
    return reproduce("masks", chosen(coco, output)), output


def test_a_sweep_measures_what_the_defended_model_does(masks, coco):
    outcome, _ = masks
    data = open_dataset(coco, SIZE)
    images = torch.stack([data[i] for i in range(5)])
    measured = {(x.variant, x.setting, x.figure): x.measured for x in outcome.lines}
    assert len(measured) == len(outcome.lines) == 6 * 3 * 2
    for rows in (2, 6):
        demux = PatchDemux(three(), PatchThreat(4, 4), DoubleMasking(rows), batch_size=64)
        bounds = demux.bounds(images)
        for setting in ("defended", "certified", "location"):
            key = f"{rows} x {rows} masks", setting
            protocol = paper_protocol(bounds, data.targets, setting).average_precision
            curve = precision_recall_curve(bounds, data.targets, setting)
            assert measured[*key, "AP"] == pytest.approx(100 * protocol, nan_ok=True)
            area = 100 * curve.paper_average_precision()
            assert measured[*key, "AP curve"] == pytest.approx(area)


def test_a_sweep_draws_its_figure_and_keeps_its_table(masks):
    outcome, output = masks
    assert outcome.pictures == (output / "masks.svg", output / "masks.png")
    svg = outcome.pictures[0].read_text()
    for text in ("number of masks", "AP (%)", "Certified (Alg. 2)", ">49<"):
        assert text in svg
    with Image.open(outcome.pictures[1]) as picture:
        assert picture.format == "PNG"
        assert picture.width > 800
    kept = json.loads((output / "masks.json").read_text())
    assert kept == outcome.as_json()
    assert {row["published"] for row in kept["rows"]} == {None}
    assert len(kept["commands"]) == 12
    assert not any("NaN" in note for note in kept["notes"])


def test_complete_runs_are_reused_by_every_experiment_and_by_evaluate(masks, coco):
    outcome, output = masks
    Net.calls = 0
    again = reproduce("masks", chosen(coco, output))
    assert again.as_json() == outcome.as_json()
    reproduce("attackers", chosen(coco, output))
    reproduce("vit", chosen(coco, output))
    assert Net.calls == 0
    pytest.importorskip("patchdemux.cli.evaluate")
    done = CliRunner().invoke(cli.app, shlex.split(outcome.commands[0])[1:])
    assert done.exit_code == 0, done.output
    assert "nothing to do" in done.output


def test_an_interrupted_sweep_goes_on(coco, tmp_path):
    class Stop(Exception):
        pass

    def stop(what, done, total):
        if what == "evaluating, 3 x 3 masks":
            raise Stop

    with pytest.raises(Stop):
        reproduce("masks", chosen(coco, tmp_path), stop)
    seen = {}
    reproduce("masks", chosen(coco, tmp_path), lambda what, *far: seen.setdefault(what, far))
    done, total = seen["evaluating, 2 x 2 masks"]
    assert done == total == 5 * 11
    assert seen["evaluating, 4 x 4 masks"][0] == 0


def test_attackers(coco, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--model", "test_reproduce:three", "--size", SIZE, "--batch-size", 64)
    shown = run_cli("attackers", "--data", coco, "--output", "out", *options)
    assert shown.exit_code == 0, shown.output
    for text in (
        "Attacker prefers misses",
        "P@75%",
        "not at hand",
        "the comparison of attackers in the paper",
        "not the paper's: model, input size",
        "patchdemux evaluate",
    ):
        assert text in " ".join(shown.output.split())
    rows = json.loads(Path("out/attackers.json").read_text())["rows"]
    area = {r["setting"]: r["measured"] for r in rows if r["figure"] == "AP curve"}
    assert area["certified"] <= area["location"] <= area["location-fn"] + 1e-9
    assert area["location"] <= area["location-fp"] + 1e-9


def test_voc(devkit, tmp_path):
    outcome = reproduce("voc", chosen(devkit, tmp_path, model="test_reproduce:twenty"))
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "VOCdevkit-test-test_reproduce-twenty-24px-2pct-6x6"
    assert len(outcome.lines) == 4 * 5
    assert outcome.pictures == ()
    assert "--year 2007 --split test" in outcome.commands[0]


def test_finetuning_compares_the_checkpoints_that_are_given(coco, tmp_path):
    files = {"vanilla": tmp_path / "a.pth", "greedy-cutout-6x6": tmp_path / "b.pth"}
    for seed, file in enumerate(files.values()):
        torch.save(Net(3, seed).state_dict(), file)
    outcome = reproduce("finetuning", chosen(coco, tmp_path, weights=files))
    assert {line.variant for line in outcome.lines} == {"vanilla", "greedy cutout 6 x 6"}
    left_out = "left out, as no weights were given for them: random-cutout, greedy-cutout-3x3"
    assert left_out in outcome.notes
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert f"--weights {tmp_path / 'b.pth'}" in outcome.commands[2]


def test_runtime(coco, tmp_path):
    outcome = reproduce("runtime", chosen(coco, tmp_path, limit=2))
    assert [(line.variant, line.setting) for line in outcome.lines] == [
        ("no masks", "undefended"),
        *((f"{n} x {n} masks", f"{kind}-label") for n in (2, 4, 6) for kind in ("single", "multi")),
    ]
    assert all(line.figure == "median ms" and line.measured > 0 for line in outcome.lines)
    assert "the median of 2 images, one at a time" in outcome.notes[0]
    assert all(picture.stat().st_size > 1000 for picture in outcome.pictures)
    assert not (tmp_path / "runs").exists()


def test_single_label_inference_says_what_multi_label_inference_says_of_that_label(coco):
    data = open_dataset(coco, SIZE)
    image, threat = data[0][None], PatchThreat(4, 4)
    classifier = Classifier(three())
    every = PatchDemux(classifier, threat, DoubleMasking(2)).predict(image, 0.5)
    one = PatchDemux(Classifier(FirstLabel(classifier)), threat, DoubleMasking(2))
    torch.testing.assert_close(one.predict(image, 0.5), every[:, :1])


# --- published figures ----------------------------------------------------------------------------

ENTRY = """
paper = "a paper"
[[figures]]
experiment = "masks"
table = "Table 0"
variant = "6 x 6 masks"
setting = "certified"
figure = "AP"
value = 41.5
source = "invented for a test"
"""


def test_the_published_file_is_well_formed():
    published = read_published()
    assert "2505.24703" in published.paper
    for entry in published.figures.values():
        whole = experiment(entry.experiment)
        assert entry.setting in (whole.settings or ("undefended", "single-label", "multi-label"))
        assert entry.figure in ("P@25%", "P@50%", "P@75%", "AP", "median ms")
        assert entry.table.split()[0] in ("Table", "Figure")
        assert len(entry.source) > 10


def test_a_published_figure_stands_beside_the_measured_one(masks, coco, tmp_path, monkeypatch):
    file = tmp_path / "published.toml"
    file.write_text(ENTRY)
    published = read_published(file)
    monkeypatch.setattr(result, "read_published", lambda: published)
    outcome = reproduce("masks", chosen(coco, masks[1]))
    known = [line for line in outcome.lines if line.published is not None]
    assert [(line.variant, line.setting, line.figure) for line in known] == [
        ("6 x 6 masks", "certified", "AP")
    ]
    line = dataclasses.replace(known[0], measured=40.0)
    assert line.difference == -1.5
    assert "Certified (Alg. 2) (published)" in outcome.pictures[0].read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source =", "origin =", "must have experiment, table, variant"),
        ("value = 41.5", 'value = "41.5"', "value is '41.5'"),
        ('"invented for a test"', '""', "source is ''"),
        ("6 x 6", "9 x 9", "no experiment 'masks' has a variant '9 x 9 masks'"),
    ],
)
def test_an_incomplete_published_figure_is_refused(tmp_path, old, new, message):
    file = tmp_path / "published.toml"
    file.write_text(ENTRY.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_published(file)
    file.write_text(ENTRY + ENTRY.partition('"a paper"')[2])
    with pytest.raises(ValueError, match="repeats an earlier one"):
        read_published(file)


# --- what is absent or wrong ----------------------------------------------------------------------


def test_absent_data_and_weights_are_told_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        reproduce("resnet", Choices())
    text = str(error.value)
    for part in (
        "data: there is no data/coco2014. Get MS-COCO 2014",
        "annotations/instances_val2014.json",
        "weights: there is no weights/tresnet_l.pth. Get the checkpoint MS_COCO_TRresNet_L_448",
        "give --weights FILE, or put it at weights/tresnet_l.pth",
    ):
        assert part in text
    with pytest.raises(FileNotFoundError, match="Get PASCAL VOC 2007: the annotated test data"):
        reproduce("voc", Choices())
    with pytest.raises(FileNotFoundError, match="hidden; then give --weights random-cutout=FILE"):
        reproduce("finetuning", Choices())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables"], "no experiment is called 'tables'; there are vit, resnet"),
        (["finetuning", "--weights", "a.pth"], "give each as --weights NAME=FILE"),
        (["finetuning", "--weights", "b=a.pth"], "names vanilla, random-cutout"),
        (["vit", "--weights", "a.pth", "--weights", "b.pth"], "there is a file for the model"),
    ],
)
def test_wrong_choices(arguments, message):
    wrong = run_cli(*arguments)
    assert wrong.exit_code == 1
    assert message in str(wrong.exception)


def test_a_model_that_this_version_lacks_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "FORMS", '"digits" or "q2l-cvt"')
    lacking = "model: this version cannot make the paper's TResNet-L; give one with --model"
    with pytest.raises(FileNotFoundError, match=lacking):
        reproduce("resnet", Choices())
    with pytest.raises(FileNotFoundError) as error:
        reproduce("vit", Choices())
    assert "model:" not in str(error.value)


def test_without_an_experiment_the_list_is_pointed_at():
    wrong = run_cli()
    assert wrong.exit_code == 2
    assert "--list" in wrong.output


def test_runs_of_something_else_are_refused(masks, coco):
    file = masks[1] / "other.pth"
    torch.save(Net(3, seed=1).state_dict(), file)
    with pytest.raises(RunError, match="holds a run of something else: weights was"):
        reproduce("masks", chosen(coco, masks[1], weights={"": file}))


def test_other_data_is_taken_as_it_is_and_named_in_the_notes(tmp_path):
    pytest.importorskip("sklearn")
    choices = Choices(data="digits:2", model="digits", size=62, limit=1, output=tmp_path)
    assert jobs_of(experiment("vit"), choices)[0].options == {}
    outcome = reproduce("vit", choices)
    assert "not the paper's: model, input size, data, number of images" in outcome.notes[-1]
