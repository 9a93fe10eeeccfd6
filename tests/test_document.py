"""Certificates as documents: written by `certify`, confirmed or refuted by `verify`."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from patchdemux import document
from patchdemux.data.digits import digit_scenes
from patchdemux.models.digit_net import digit_net
from patchdemux.models.libraries import make_timm
from test_cli_evaluate import invoke

DIGITS = ("--model", "digits", "--masks", "3", "--patch", "8px@source", "--jpeg", "4:4:4")


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    """A photo, larger than the model's input, and its certificate."""
    home = tmp_path_factory.mktemp("certificates")
    scene = (255 * digit_scenes(1).images[0].permute(1, 2, 0).numpy()).round().astype(np.uint8)
    Image.fromarray(scene).resize((90, 80)).save(home / "scene.png")
    result = invoke("certify", home / "scene.png", *DIGITS, "--certificate", home / "scene.json")
    assert result.exit_code == 0, result.output
    assert f"certificate: {home / 'scene.json'}" in result.stdout
    return home


def changed(home, target, change, *, sign=True):
    """A copy of the certificate with one change, and a sum that fits it."""
    content = json.loads((home / "scene.json").read_text())
    change(content)
    if sign:
        content["sha256"] = document.digest(content)
    target.write_text(json.dumps(content))
    return target


def refusal(certificate, photo, *more):
    result = invoke("verify", certificate, photo, *more)
    assert result.exit_code == 1, result.output
    assert "confirmed" not in result.stdout
    return result.stdout


def test_a_certificate_says_all_it_depends_on(issued):
    content = json.loads((issued / "scene.json").read_text())
    assert content["format"] == document.FORMAT
    assert (content["image"]["height"], content["image"]["width"]) == (80, 90)
    assert content["footprint"]["patch"]["jpeg"] == "4:4:4"
    assert content["threat"]["height"] > 8
    assert content["function"]["weights"].startswith("sha256:")
    assert (content["function"]["runtime"], content["function"]["precision"]) == (
        "torch", "float32"
    )  # fmt: skip
    assert content["margin"]["value"] > 0
    assert content["threshold"] == 0.5
    assert [label["name"] for label in content["labels"]] == list("0123456789")
    certified = [label["certified"] for label in content["labels"]]
    assert any(certified)
    assert "patch of 8 x 8 pixels of the photo, put there before its JPEG" in content["statement"]
    for label in content["labels"]:
        assert label["at_least"] <= label["score"] <= label["at_most"]
        assert label["certified"] == (
            label["at_least"] > 0 if label["predicted"] else label["at_most"] <= 0
        )


def test_it_is_confirmed(issued):
    result = invoke("verify", issued / "scene.json", issued / "scene.png")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("confirmed: every claim of ")
    result = invoke("verify", issued / "scene.json", issued / "scene.png", "--json")
    assert json.loads(result.stdout) == {"confirmed": True, "problems": [], "notes": []}


def test_a_change_without_a_new_sum_is_seen(issued, tmp_path):
    edit = changed(issued, tmp_path / "a.json", lambda c: c.update(issued="later"), sign=False)
    assert "was changed after it was issued" in refusal(edit, issued / "scene.png")


def claim(place, **values):
    return lambda content: content["labels"][place].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (claim(3, at_least=50.0, score=60.0, at_most=70.0), "a score of at least 50 is claimed"),
        (claim(3, at_most=-50.0, score=-60.0, at_least=-70.0), "a score of at most -50 is claimed"),
        (claim(2, name="cat"), "label 'cat': the class of this place is '2'"),
        (claim(2, score=99.0), "label '2': its score 99 lies outside of its own bounds"),
        (
            claim(2, certified=True, predicted=True, at_least=None, at_most=None),
            "label '2': it is said to be certified, but its bounds allow to turn it",
        ),
        (lambda c: c.update(statement="x"), "its statement in words is not what its fields say"),
        (lambda c: c["labels"].pop(), "it has 9 labels, but the model has 10 classes"),
        (
            lambda c: c["footprint"]["patch"].update(height=20),
            "on this photo, a patch of 20 x 8 pixels of the photo, put there",
        ),
    ],
)
def test_false_claims_with_a_fitting_sum_are_refuted(issued, tmp_path, change, message):
    assert message in refusal(changed(issued, tmp_path / "a.json", change), issued / "scene.png")


def test_a_larger_patch_is_refuted(issued, tmp_path):
    """Claims that were made for another patch do not hold for a larger one."""

    def enlarge(content):
        content["footprint"] = None
        content["threat"] = {"height": 30, "width": 30}
        threat = document.PatchThreat(30, 30)
        content["statement"] = document.statement(threat, None, content["threshold"])

    said = refusal(changed(issued, tmp_path / "a.json", enlarge), issued / "scene.png")
    assert "is claimed, not" in said


def test_another_photo_is_refuted(issued, tmp_path):
    other = tmp_path / "other.png"
    with Image.open(issued / "scene.png") as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(other)
    assert "is not the photo of the certificate" in refusal(issued / "scene.json", other)


def test_other_weights_are_refuted(issued, tmp_path, monkeypatch):
    state = {name: tensor.clone() for name, tensor in digit_net().state_dict().items()}
    name = next(iter(state))
    state[name][0] += 1e-3

    def other():
        network = digit_net()
        network.load_state_dict(state)
        return network

    monkeypatch.setattr("patchdemux.models.digit_net.digit_net", other)
    said = refusal(issued / "scene.json", issued / "scene.png")
    assert "it is about another function: weights was sha256:" in said


@pytest.mark.parametrize("more", [("--runtime", "compile"), ("--precision", "bfloat16")])
def test_another_runtime_is_refuted(issued, more):
    said = refusal(issued / "scene.json", issued / "scene.png", *more)
    assert "it is about another function: " in said
    assert f"{more[0][2:]} was " in said


def test_a_model_with_weights_of_its_own(issued, tmp_path):
    torch.manual_seed(0)
    network = make_timm("test_resnet", num_classes=2)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    model = ("--model", "timm:test_resnet", "--weights", tmp_path / "weights.safetensors")
    few = ("--classes", "cat,dog", "--size", "48x40", "--masks", 2, "--resize", "letterbox")
    photo, folder = issued / "scene.png", tmp_path / "all"
    result = invoke("certify", photo, photo, *model, *few, "--certificate", folder, "--json")
    assert result.exit_code == 0, result.output
    named = [image["certificate"] for image in json.loads(result.stdout)["images"]]
    assert named == [str(folder / "scene.json"), str(folder / "scene-2.json")]
    for certificate in named:
        assert invoke("verify", certificate, photo, *model[2:]).exit_code == 0
    assert "weights was" in refusal(named[0], photo)  # without its weights


def test_what_cannot_be_checked_has_its_own_code(issued, tmp_path):
    (tmp_path / "text.json").write_text("no")
    (tmp_path / "other.json").write_text("{}")
    for certificate, photo, message in [
        ("text.json", issued / "scene.png", "is not JSON, or damaged"),
        ("other.json", issued / "scene.png", "is not a certificate of the format"),
        ("none.json", issued / "scene.png", "No such file"),
        (issued / "scene.json", tmp_path / "none.png", "the file is missing"),
    ]:
        result = invoke("verify", tmp_path / certificate, photo)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    photos = (issued / "scene.png", issued / "scene.png")
    result = invoke("certify", *photos, *DIGITS, "--certificate", tmp_path / "a.json")
    assert "is one file for 2 photos: name a folder" in str(result.exception)


def test_one_sided_guards_claim_nothing_on_the_other_side(issued, tmp_path):
    target = tmp_path / "a.json"
    guard = ("--guard", "recall", "--certificate", target)
    assert invoke("certify", issued / "scene.png", *DIGITS, *guard).exit_code == 0
    content = json.loads(target.read_text())
    assert {label["at_most"] for label in content["labels"]} == {None}
    assert invoke("verify", target, issued / "scene.png").exit_code == 0
