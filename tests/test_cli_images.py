"""`patchdemux certify`, `predict` and `masks`: photos in, guarantees and pictures out."""

import json
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from patchdemux import DoubleMasking, PatchDemux, PatchThreat, certified, predict
from patchdemux.cli import app
from patchdemux.data.coco import CLASS_NAMES
from patchdemux.data.digits import digit_scenes
from patchdemux.data.preprocess import read_image
from patchdemux.models import coco
from patchdemux.models.digit_net import digit_net
from patchdemux.report.heatmaps import probability

DIGITS = ("--model", "digits", "--masks", "3", "--patch", "6px")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def size_of(picture):
    with Image.open(picture) as image:
        image.load()
        return image.size


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Three digit scenes as PNG files."""
    folder = tmp_path_factory.mktemp("scenes")
    files = []
    for i, scene in enumerate(digit_scenes(3).images):
        pixels = (255 * scene.permute(1, 2, 0).numpy()).round().astype(np.uint8)
        files.append(folder / f"scene{i}.png")
        Image.fromarray(pixels).save(files[-1])
    return files


@pytest.fixture(scope="module")
def bounds(scenes):
    """What the package itself says of the scenes."""
    demux = PatchDemux(digit_net(), PatchThreat(6, 6), DoubleMasking(3))
    return demux.bounds(torch.stack([read_image(file, 62) for file in scenes]))


def test_certify_gives_the_package_own_certificates(scenes, bounds):
    result = invoke("certify", *scenes, *DIGITS, "--threshold", 0.5, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["patch"] == {"height": 6, "width": 6}
    assert (answer["masks"], answer["threshold"]) == (9, 0.5)
    labels = predict(bounds, 0.0)
    safe = certified(bounds, labels, 0.0)
    assert not safe.all()
    for i, image in enumerate(answer["images"]):
        assert image["file"] == str(scenes[i])
        assert image["picture"] is None
        assert len(image["labels"]) == 10
        for label in image["labels"]:
            c = label["index"]
            assert label["name"] == str(c)
            assert label["predicted"] == labels[i, c]
            assert label["certified"] == safe[i, c]
            assert label["at_least"] <= label["probability"] <= label["at_most"]
            assert (label["places"] == 0) == label["certified"]
    assert "9 masks (3 x 3)" in result.stderr


def test_certify_says_it_in_words_and_draws_it(scenes, tmp_path):
    (tmp_path / "other").mkdir()
    namesake = tmp_path / "other" / "scene0.png"
    namesake.write_bytes(scenes[1].read_bytes())
    result = invoke("certify", scenes[0], namesake, *DIGITS, "--output", tmp_path / "maps")
    assert result.exit_code == 0, result.output
    assert "6px is a patch of 6 x 6 pixels, 0.94% of the input of 62 x 62" in result.stdout
    assert "certified: no patch can hide it" in result.stdout
    assert "absent, but a patch may fake it, from" in result.stdout
    for name in ("scene0-certificate.png", "scene0-2-certificate.png"):
        assert min(size_of(tmp_path / "maps" / name)) > 300
        assert f"picture: {tmp_path / 'maps' / name}" in result.stdout


def test_one_sided_guards_prove_one_side(scenes):
    answer = json.loads(invoke("certify", scenes[0], *DIGITS, "--guard", "recall", "--json").stdout)
    for label in answer["images"][0]["labels"]:
        assert label["at_most"] == 1
        assert label["predicted"] or not label["certified"]


def test_predict_names_the_digits(scenes, bounds):
    result = invoke("predict", *scenes, *DIGITS)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    answers = json.loads(invoke("predict", *scenes, *DIGITS, "--json").stdout)["images"]
    for file, line, answer, labels in zip(
        scenes, lines, answers, predict(bounds, 0.0), strict=True
    ):
        assert {int(name) for name in answer["labels"]} == set(np.flatnonzero(labels).tolist())
        top, least = answer["labels"][0], answer["probability_at_least"]
        assert line.startswith(f"{file}: {top} (at least {least[top]:.1%})")
        assert line.endswith(f"; {answer['views']} forward passes")
        assert not answer["undecided"]
        most = answer["probability_at_most"]
        for i, own in enumerate(probability(bounds.defended[scenes.index(file)])):
            # Both ran the same views, but in other batches, which changes the last bits of a score.
            assert least[str(i)] - 1e-6 <= own <= most[str(i)] + 1e-6
    nothing = invoke("predict", scenes[0], *DIGITS, "--threshold", "0.9999999").stdout
    assert ": no label; " in nothing


def test_predict_within_a_limit_leaves_labels_undecided(scenes):
    command = ("predict", scenes[0], *DIGITS, "--threshold", "0.2")
    all_of_them = json.loads(invoke(*command, "--json").stdout)["images"][0]
    limit = 9  # the single masks of 3 x 3
    assert all_of_them["views"] > limit
    result = invoke(*command, "--json", "--max-views", limit)
    answer = json.loads(result.stdout)["images"][0]
    assert answer["views"] == limit
    assert answer["undecided"]
    assert set(answer["labels"]) <= set(all_of_them["labels"])
    assert set(all_of_them["labels"]) <= {*answer["labels"], *answer["undecided"]}
    text = invoke(*command, "--max-views", limit).stdout
    assert f"undecided: {', '.join(answer['undecided'])}; {limit} forward passes" in text


@pytest.mark.parametrize("runtime", [("--runtime", "onnx"), ("--runtime", "auto")])
def test_photos_by_another_runtime(scenes, runtime):
    result = invoke("predict", scenes[0], *DIGITS, *runtime)
    assert result.exit_code == 0, result.output
    assert (
        result.stdout.split(" (")[0] == invoke("predict", scenes[0], *DIGITS).stdout.split(" (")[0]
    )
    assert ("the fastest is" in result.output) == ("auto" in runtime)


def test_photos_of_any_size_with_class_names(tmp_path):
    (tmp_path / "names.txt").write_text("".join(f"{word}\n" for word in "abcdefghij"))
    photo = tmp_path / "photo.jpg"
    Image.fromarray(np.full((50, 120, 3), 90, np.uint8)).save(photo)
    arguments = ("--classes", tmp_path / "names.txt", "--resize", "letterbox", "--json")
    result = invoke("predict", photo, *DIGITS, *arguments)
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["images"][0]["probability_at_most"]) == list("abcdefghij")


def test_no_photo_is_silently_skipped(scenes, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    files = [str(scenes[0]), str(broken), str(tmp_path / "missing.jpg")]
    command = [sys.executable, "-m", "patchdemux", "certify", *files, *DIGITS, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: cannot read image {broken}: it is not an image")
    assert f"; cannot read image {tmp_path / 'missing.jpg'}: the file is missing" in result.stderr
    assert result.stderr.count("\n") == 1


def test_photos_without_a_model_get_labels_of_coco(scenes, tmp_path, monkeypatch):
    """With random weights, so that it is the same whatever weights are shipped."""
    torch.manual_seed(0)
    state = timm.create_model(coco.ARCHITECTURE, num_classes=80).state_dict()
    save_file(
        {name: tensor.half() for name, tensor in state.items()}, tmp_path / "coco.safetensors"
    )
    monkeypatch.setattr(coco, "WEIGHTS", tmp_path / "coco.safetensors")
    few = ("--size", "64", "--masks", "2", "--threshold", "0.4")
    result = invoke("certify", scenes[0], *few, "--json")
    assert result.exit_code == 0, result.output
    labels = json.loads(result.stdout)["images"][0]["labels"]
    assert {label["name"] for label in labels} == set(CLASS_NAMES)
    predicted = invoke("predict", scenes[0], *few, "--json")
    assert list(json.loads(predicted.stdout)["images"][0]["probability_at_least"]) == list(
        CLASS_NAMES
    )
    monkeypatch.setattr(coco, "WEIGHTS", tmp_path / "missing.safetensors")
    absent = invoke("predict", scenes[0])
    assert absent.exit_code == 1
    assert "weights of the COCO classifier are missing" in str(absent.exception)
    monkeypatch.setitem(sys.modules, "timm", None)
    without = invoke("predict", scenes[0])
    assert "timm models need timm: pip install 'patchdemux[models]'" in str(without.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "digits", "--threshold", "1"], "strictly between 0 and 1"),
        (["--model", "digits", "--patch", "63px"], "does not fit into an image of 62 x 62"),
        (["--model", "digits", "--classes", "a,b"], "10 classes, but there are 2 class names"),
        (["--model", "digits", "--resize", "fold"], "mode must be one of squash, crop"),
    ],
)
def test_what_cannot_be_is_said(scenes, arguments, message):
    result = invoke("certify", scenes[0], *arguments)
    assert result.exit_code == 1
    assert message in str(result.exception)


def test_masks_are_drawn_and_listed(tmp_path):
    picture = tmp_path / "new" / "masks.png"
    result = invoke(
        "masks", "--size", "64x96", "--patch", "2%", "--masks", "2x3", "--output", picture
    )
    assert result.exit_code == 0, result.output
    assert "6 masks (2 x 3)" in result.stdout
    assert "proved to cover every patch of 12 x 12 pixels" in result.stdout
    assert "22 forward passes per image" in result.stdout
    assert size_of(picture)[0] > 600


def test_masks_on_a_photo_of_its_own_size(scenes, tmp_path):
    arguments = ("--patch", "6px", "--masks", "3", "--output", tmp_path / "m.png", "--json")
    answer = json.loads(invoke("masks", scenes[0], *arguments).stdout)
    assert answer["image_size"] == [62, 62]
    assert answer["boxes"][0] == {"top": 0, "left": 0, "height": 24, "width": 24}
    assert "covers" not in answer


def test_masks_say_whether_they_cover_another_patch(tmp_path):
    arguments = ("masks", "--size", "64", "--patch", "8px", "--masks", "4", "--output")
    arguments = (*arguments, tmp_path / "m.png", "--covers")
    smaller = invoke(*arguments, "4x8px")
    assert smaller.exit_code == 0, smaller.output
    assert "they cover every patch of 4 x 8 pixels as well" in smaller.stdout
    larger = invoke(*arguments, "9px")
    assert larger.exit_code == 1
    assert "top left corner at row 0, column 14 lies inside no mask" in str(larger.exception)
    scripted = invoke(*arguments, "9px", "--json")
    assert scripted.exit_code == 1
    answer = json.loads(scripted.stdout)
    assert answer["covers"] is False
    assert "row 0, column 14" in answer["problem"]


@pytest.mark.parametrize("command", ["certify", "predict", "masks"])
def test_help_teaches_with_an_example(command):
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [command, "--help"])
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith(f"patchdemux {command} street.jpg") for line in lines)
