"""`patchdemux attack`: tables, plots, examples, and a false certificate that cannot be missed."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from patchdemux import DoubleMasking, MaskSet, PatchThreat
from patchdemux.attack import Attack, attack
from patchdemux.cli import app
from patchdemux.cli.attack import FALSIFIED, as_place
from patchdemux.data.digits import digit_scenes
from patchdemux.demux import PatchDemux
from patchdemux.models.digit_net import digit_net
from test_brute_force import Holed

SMALL = ("--masks", "2", "--steps", "2", "--expectation", "1", "--limit", "2", "--examples", "1")


def invoke(*arguments):
    return CliRunner().invoke(app, ["attack", *(str(argument) for argument in arguments)])


def rows_of(content):
    return {row["setting"]: row for row in content["rows"]}


def test_a_report_with_a_table_and_a_plot_per_objective(tmp_path):
    more = ("--objective", "hide", "--objective", "invent", "--json")
    result = invoke("digits:4", tmp_path / "out", *SMALL, *more)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["falsified"] is False
    assert [own["attack"]["objective"] for own in answer["attacks"]] == ["hide", "invent"]
    for name, own in zip(("hide", "invent"), answer["attacks"], strict=True):
        assert json.loads((tmp_path / f"out/{name}.json").read_text()) == own
        text = (tmp_path / f"out/{name}.txt").read_text()
        assert "Undefended, ATTACKED" in text
        assert "Defended, ATTACKED" in text
        assert "What is not known" in text
        with Image.open(tmp_path / f"out/{name}.png") as plot:
            assert plot.width > 600
        assert len(list((tmp_path / "out/examples").glob(f"{name}-*defended.png"))) == 2
        rows = rows_of(own)
        assert rows["exact"]["recall"] <= rows["defended-attacked"]["recall"]
        assert rows["exact"]["precision"] <= rows["defended-attacked"]["precision"]
        assert len(own["images"]) == 2
    assert not (tmp_path / "out/falsified").exists()


def test_a_universal_patch_is_made_and_used_again(tmp_path):
    made = invoke("digits:3", tmp_path / "made", *SMALL, "--universal", "--place", "random")
    assert made.exit_code == 0, made.output
    patch = tmp_path / "made/both-universal-undefended.png"
    with Image.open(patch) as content:
        assert content.size == (9, 9)
    used = invoke("digits:3", tmp_path / "used", *SMALL, "--use", patch, "--place", "10x20")
    assert used.exit_code == 0, used.output
    images = json.loads((tmp_path / "used/both.json").read_text())["images"]
    assert {tuple(image["defended_place"]) for image in images} == {(10, 20)}
    both = invoke("digits:3", tmp_path / "x", *SMALL, "--use", patch, "--universal")
    assert "give one of them" in str(both.exception)


def test_a_false_certificate_is_told_loudly_and_kept(tmp_path, monkeypatch):
    """Masks that hide nothing: every region is said to withstand what no mask takes away."""

    def nowhere(self, image_size, threat):
        whole = MaskSet.covering(image_size, threat, self.masks)
        return Holed(whole.image_size, threat, whole.boxes - [0, 0, 26, 26])

    monkeypatch.setattr(DoubleMasking, "mask_set", nowhere)
    monkeypatch.setattr(MaskSet, "_prove_coverage", lambda self: None)
    result = invoke("digits:3", tmp_path, *SMALL, "--place", "random", "--objective", "errors")
    assert result.exit_code == FALSIFIED
    assert "FALSIFIED CERTIFICATE: image digits test " in result.output
    assert "region none: the masks do not cover it" in result.output
    assert "but was proved to be within" in result.output
    content = json.loads((tmp_path / "errors.json").read_text())
    assert content["falsified"] is True
    first = content["violations"][0]
    stem = f"errors-{first['image']}-row{first['row']}-column{first['column']}.png"
    with Image.open(tmp_path / "falsified" / stem) as patch:
        assert patch.size == (9, 9)


def test_the_undefended_model_falls_on_digit_scenes():
    """Ten steps of the gradient are enough for a wrong label on every other image."""
    scenes = digit_scenes(6)
    truth = scenes.targets.astype(bool)
    demux = PatchDemux(digit_net(), PatchThreat(9, 9), DoubleMasking((2, 2)), batch_size=64)
    bounds = demux.bounds(scenes.images)
    assert bounds.clean is not None
    before = ((bounds.clean > 0) != truth).sum()
    found = [
        attack(
            demux,
            scenes.images,
            truth,
            Attack("errors", steps=steps),
            defended=False,
            bounds=bounds,
        ).errors.sum()
        for steps in (0, 10)
    ]
    assert found[1] > found[0] >= before
    assert found[1] >= before + 3


def test_photos_get_the_coco_classifier(tmp_path, monkeypatch):
    asked = []

    def load(name, **options):
        asked.append(name)
        raise ValueError("enough")

    monkeypatch.setattr("patchdemux.cli.options.load_model", load)
    result = invoke(tmp_path, tmp_path / "out")
    assert str(result.exception) == "enough"
    assert asked == ["coco"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective", "harm"), "objective must be one of .* but got 'harm'"),
        (("--place", "left"), "--place must be weakest, every, random or ROWxCOLUMN"),
        (("--steps", "-1"), "steps must be at least 0"),
        (("--only", "3,cat"), "there is no class 'cat'; there are .'0', '1'"),
        (("--threshold", "1"), "strictly between 0 and 1"),
        (("--use", "no.png"), "there is no patch no.png"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, arguments, message):
    result = invoke("digits:1", tmp_path, *arguments)
    assert result.exit_code == 1
    with pytest.raises(ValueError, match=message):
        raise ValueError(str(result.exception))


def test_places_as_people_write_them():
    assert as_place("weakest") == "weakest"
    assert as_place("20x35") == (20, 35)
    assert np.array(as_place("0x0")).tolist() == [0, 0]


def test_help_teaches_with_an_example():
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["attack", "--help"])
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith("patchdemux attack digits:50") for line in lines)
