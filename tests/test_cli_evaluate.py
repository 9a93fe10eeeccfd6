"""`patchdemux evaluate` and `patchdemux plan`: what they print, write, resume and refuse."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from patchdemux.cli import app, main
from patchdemux.cli.evaluate import duration, speed_of
from patchdemux.cli.words import as_numbers, as_pair, as_threat
from patchdemux.runs import Run, Status
from photo_files import photo, voc_xml, write

TINY = ("--masks", "2", "--batch-size", "64")
STREET = """
import os
import time

import torch

class Slow(torch.nn.Identity):
    def forward(self, images):
        time.sleep(len(images) * float(os.environ.get("SECONDS_PER_VIEW", 0)))
        return images

def street(classes=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        Slow(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, classes)
    )

def digits():
    return street(10)
"""


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Four photos with a CSV, and a model of three classes in a module of the current folder."""
    random = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = [("file", "cat", "dog", "fox")]
    for i in range(4):
        pixels = random.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append((f"{i}.png", i % 2, 1, 0))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (tmp_path / "my_models.py").write_text(STREET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    return folder


def test_evaluate_prints_the_table_and_where_the_run_is(tmp_path):
    result = invoke("evaluate", "digits:4", tmp_path / "run", *TINY)
    assert result.exit_code == 0, result.output
    assert "2% is a patch of 9 x 9 pixels, 2.11% of the input of 62 x 62 pixels" in result.stdout
    assert "4 masks (2 x 2)" in result.stdout
    assert f"the run is at {tmp_path / 'run'}: 4 images" in result.stdout
    assert "Exact worst case" in result.stdout
    assert "resuming" not in result.stdout
    assert Run.open(tmp_path / "run").defense.startswith("DoubleMasking(masks=(2, 2)")


def test_a_finished_run_is_read_and_another_one_refused(tmp_path):
    assert invoke("evaluate", "digits:3", tmp_path / "run", *TINY).exit_code == 0
    again = invoke("evaluate", "digits:3", tmp_path / "run", *TINY, "--json")
    assert "nothing to do: all 3 images are done" in again.stderr
    assert json.loads(again.stdout)["images"] == 3
    other = invoke("evaluate", "digits:3", tmp_path / "run", *TINY, "--patch", "12px")
    assert other.exit_code == 1
    assert "holds a run of something else: threat was" in str(other.exception)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_an_interrupted_run_resumes_by_itself(photos, tmp_path):
    path = tmp_path / "run"
    arguments = ("evaluate", "digits:48", path, "--model", "my_models:digits", "--size", 62, *TINY)
    process = subprocess.Popen(
        [sys.executable, "-m", "patchdemux", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECONDS_PER_VIEW": "0.01"},  # 1.7 s for each of 3 chunks
        # Whoever runs the tests in the background ignores Ctrl+C, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and Run.open(path, allow_incomplete=True).done.any():
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "stopped: what is stored stays, and the same command resumes\n"
    done = int(Run.open(path, allow_incomplete=True).done.sum())
    assert 0 < done < 48
    resumed = invoke(*arguments)
    assert f"resuming: {done} of 48 images are done already" in resumed.stdout
    assert Run.open(path).complete


def test_json_is_all_that_stdout_holds(photos, tmp_path):
    (photos / "2.png").write_bytes(b"no image")
    arguments = ("--model", "my_models:street", "--size", "32x40", "--patch", "6x4px", *TINY)
    stopped = invoke("evaluate", photos, tmp_path / "run", *arguments)
    assert stopped.exit_code == 1
    assert "2.png: it is not an image" in str(stopped.exception)
    result = invoke(
        "evaluate", photos, tmp_path / "run", *arguments, "--on-error", "skip", "--json"
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["images"] == 3
    assert answer["threat"] == {"height": 6, "width": 4}
    assert [image["name"] for image in answer["left_out_images"]] == ["2.png"]
    assert answer["rows"][0]["setting"] == "undefended"
    assert "left out: 2.png: cannot read image" in result.stderr


def test_a_timm_model_gets_the_classes_of_the_data(photos, tmp_path):
    pytest.importorskip("timm")
    arguments = ("--model", "timm:resnet10t", "--size", 32, "--limit", 1, *TINY)
    result = invoke("evaluate", photos, tmp_path / "run", *arguments)
    assert result.exit_code == 0, result.output
    assert "note: without --weights, timm:resnet10t is untrained" in result.stderr
    assert Run.open(tmp_path / "run").class_names == ("cat", "dog", "fox")


def test_plan_tells_views_time_and_disk():
    result = invoke("plan", "digits:10", *TINY)
    assert result.exit_code == 0, result.output
    assert "11 views per image: 110 forward passes for 10 images" in result.stdout
    assert "forward passes/s in batches of 64" in result.stdout
    assert "MB on disk at most" in result.stdout
    answer = json.loads(invoke("plan", "digits:10", *TINY, "--limit", 3, "--json").stdout)
    assert (answer["images"], answer["views"]) == (3, 33)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos"], "say with --model which model to evaluate on photos"),
        (["photos", "--model", "my_models:street"], "give --size"),
        (["photos", "--model", "nothing"], "no model is called 'nothing'; a model is"),
        (["photos", "--model", "my_models:street", "--size", "big"], "--size must be a whole"),
        (["nowhere", "--model", "my_models:street", "--size", "32"], "there is no folder or zip"),
        (["digits:2", "--patch", "big"], "--patch must be a share of the image"),
        (["digits:2", "--patch", "3.5"], "0.02 means 2%"),
        (["digits:2", "--patch", "70px"], "does not fit into an image of 62 x 62"),
        (["digits:2", "--masks", "6y4"], "--masks must be a whole number or two"),
        (["digits:2", "--fill", "black"], "--fill must be as 0.5 or 0.5,0.4,0.4"),
        (["digits:2", "--year", "2007"], "the option `year` does not apply to digit scenes"),
        (["digits:2", "--classes", "cat"], "--classes must be cat,dog or a text file"),
    ],
)
def test_what_cannot_be_is_said(photos, arguments, message):
    result = invoke("plan", *arguments)
    assert result.exit_code == 1
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("photos", "--model", "my_models:broken", "--size", "8"),
            "error: RuntimeError: the model is broken (--debug shows where)\n",
        ),
        (("digits:2", "--device", "abacus"), "error: RuntimeError: Expected one of cpu, cuda, "),
        (("nowhere",), "error: there is no folder or zip nowhere, and it is not 'digits' either\n"),
    ],
)
def test_errors_from_anywhere_are_one_line(photos, monkeypatch, capsys, given, message):
    """Those of the user's own model and of PyTorch too."""
    with (photos.parent / "my_models.py").open("a") as file:
        file.write(
            "\ndef broken():\n    raise RuntimeError('the model is broken\\nin many ways')\n"
        )
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    monkeypatch.setattr(sys, "argv", ["patchdemux", "plan", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1
    monkeypatch.setattr(sys, "argv", ["patchdemux", "--debug", "plan", *given])
    with pytest.raises((RuntimeError, OSError)):
        main()


def test_options_of_data_sets_reach_them(photos, monkeypatch):
    model = ("--model", "my_models:street", "--size", "8", "--masks", "1")
    (photos / "labels.csv").write_text("file,labels\n0.png,cat/dog\n1.png,fox\n")
    planned = invoke("plan", "photos", *model, "--separator", "/", "--json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["images"] == 2
    assert "does not apply to a CSV" in str(
        invoke("plan", "photos", *model, "--no-difficult").exception
    )


def test_difficult_objects_count_or_not(photos):
    root = photos.parent / "VOCdevkit" / "VOC2007"
    for i, hard in ((0, 1), (1, 0)):
        write(root / "Annotations" / f"{i}.xml", voc_xml(("cat", hard)).encode())
        write(root / "JPEGImages" / f"{i}.jpg", photo(i))
    write(root / "ImageSets" / "Main" / "test.txt", b"0\n1\n")
    command = ("plan", "VOCdevkit", "--model", "timm:resnet18", "--size", "32", "--masks", "1")
    counts = [
        json.loads(invoke(*command, "--json", *option).stdout)["images"]
        for option in ((), ("--difficult",), ("--no-difficult",))
    ]
    assert counts == [2, 2, 1]


def test_errors_are_one_line(tmp_path):
    command = [sys.executable, "-m", "patchdemux", "plan", "nowhere", "--model", "digits"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: there is no folder or zip nowhere")
    assert result.stderr.count("\n") == 1
    assert invoke("plan", "digits:2", "--guard", "most").exit_code == 2


@pytest.mark.parametrize("command", ["evaluate", "plan"])
def test_help_teaches_with_an_example(command):
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert any(
        line.strip().startswith(f"patchdemux {command} d") for line in result.stdout.split("\n")
    )
    assert "pixels of the" in result.stdout  # is the patch size pixels or percent?


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        *[("2%", (64, 64)), ("0.02", (64, 64)), (".02", (64, 64)), ("0.5%", (32, 32))],
        *[("64", (64, 64)), ("64px", (64, 64)), ("64x32", (64, 32)), (" 64X32PX ", (64, 32))],
        *[("1", (1, 1)), ("1.0", (448, 448)), ("100%", (448, 448))],
    ],
)
def test_patches_in_every_form(text, sides):
    threat = as_threat(text, (448, 448))
    assert (threat.height, threat.width) == sides


@pytest.mark.parametrize("text", ["", "%", "64x", "x64", "-2%", "0.5px", "nan", "1e-2", "2 %%"])
def test_no_patch(text):
    with pytest.raises(ValueError, match="--patch must be a share of the image"):
        as_threat(text, (448, 448))


def test_pairs_and_numbers():
    assert as_pair("--masks", "6") == (6, 6)
    assert as_pair("--masks", "6X4") == (6, 4)
    assert as_numbers("--fill", "0.5, 0.4,0.3") == [0.5, 0.4, 0.3]


def test_times_and_speeds_in_words():
    assert [duration(s) for s in (1.234, 42, 130, 9000, 300_000)] == [
        *("1.2 s", "42 s", "2.2 min", "2.5 hours", "3.5 days")
    ]
    status = Status("evaluating", 10, 110, 6670, 73370, seconds=10.0, views_per_second=667.0)
    assert speed_of(status) == ", 1.00 images/s, 667 forward passes/s, 100 s left"
    assert speed_of(Status("checking images", 1, 2)) == ""


def test_auto_goes_on_with_the_runtime_that_a_run_began_with(tmp_path):
    command = ("evaluate", "digits:2", tmp_path / "run", "--masks", "2", "--batch-size", "8")
    begun = invoke(*command, "--runtime", "onnx")
    assert begun.exit_code == 0, begun.output
    resumed = invoke(*command, "--runtime", "auto")
    assert resumed.exit_code == 0, resumed.output
    assert "nothing to do: all 2 images are done" in resumed.output
    assert "the fastest is" not in resumed.output
    other = invoke(*command, "--runtime", "torch")
    assert other.exit_code == 1
    assert "runtime was onnx" in str(other.exception)
