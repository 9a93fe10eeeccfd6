"""`--patch 64px@source`: a patch on the photo itself, in every command that takes a patch."""

import json

import numpy as np
import pytest
from PIL import Image

from patchdemux import Footprint, PatchThreat, SourcePatch
from patchdemux.cli.words import as_source_patch, as_threat
from patchdemux.data.preprocess import Preprocessing
from patchdemux.runs import Run
from test_cli_evaluate import TINY, invoke, photos  # noqa: F401 (a fixture)

MODEL = ("--model", "my_models:street", "--classes", "cat,dog,fox", "--size", "24", *TINY[:2])
SAID = (
    "8px@source is a patch of 8 x 8 pixels of the photo: it reaches at most 8 x 6 pixels of the "
    "input (photos of 30 x 40; squash, bilinear)\n"
    "that is a patch of 8 x 6 pixels, 8.33% of the input of 24 x 24 pixels\n"
)


def test_evaluate_records_it_and_reports_say_it(photos, tmp_path):  # noqa: F811
    arguments = ("evaluate", photos, tmp_path / "run", *MODEL, "--batch-size", 64)
    result = invoke(*arguments, "--patch", "8px@source")
    assert result.exit_code == 0, result.output
    assert SAID in result.stdout
    assert "proved to cover every patch of 8 x 6 pixels" in result.stdout
    run = Run.open(tmp_path / "run")
    assert run.footprint == Footprint.of(SourcePatch(8, 8), [(30, 40)], 24)
    assert run.threat == PatchThreat(8, 6)
    page = tmp_path / "page.html"
    assert invoke("report", tmp_path / "run", "--output", page).exit_code == 0
    text = page.read_text()
    assert "On the photo itself, it holds for every patch of 8 x 8 pixels of the photo: it" in text
    assert "against one patch of 8 x 6 pixels (patch of 8 x 8 pixels of the photo)" in text
    again = invoke(*arguments, "--patch", "8px@source", "--jpeg", "4:2:0")
    assert again.exit_code == 1
    assert "footprint was patch of 8 x 8 pixels" in str(again.exception)


def test_plan_margin_certify_and_predict_say_it(photos):  # noqa: F811
    for command in (("plan", photos), ("certify", photos / "1.png"), ("predict", photos / "1.png")):
        result = invoke(*command, *MODEL, "--patch", "8px@source")
        assert result.exit_code == 0, result.output
        assert SAID in result.stdout + result.stderr
    result = invoke("margin", photos, *MODEL, "--patch", "8px@source")
    assert result.exit_code == 0, result.output


def test_certify_takes_the_worst_of_its_photos_for_programs(photos):  # noqa: F811
    Image.fromarray(np.zeros((20, 25, 3), np.uint8)).save(photos / "small.jpg")
    files = (photos / "1.png", photos / "small.jpg")
    result = invoke("certify", *files, *MODEL, "--patch", "2%@source", "--jpeg", "4:2:0", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    patch = SourcePatch(share=0.02, jpeg="4:2:0")
    footprint = Footprint.of(patch, [(30, 40), (20, 25)], 24)
    assert Footprint.from_record(answer["footprint"]) == footprint
    assert answer["patch"] == {"height": footprint.threat.height, "width": footprint.threat.width}
    assert "put there before its JPEG compression (4:2:0)" in result.stderr


def test_masks_are_drawn_for_it(photos, tmp_path):  # noqa: F811
    picture = ("--output", tmp_path / "masks.png")
    result = invoke("masks", photos / "1.png", "--size", 24, "--patch", "8px@source", *picture)
    assert result.exit_code == 0, result.output
    assert SAID in result.stdout
    how = ("--resize", "letterbox", "--filter", "lanczos")
    result = invoke(
        "masks", photos / "1.png", "--size", 24, *how, "--patch", "8px@source", *picture, "--json"
    )
    expected = Footprint.of(
        SourcePatch(8, 8), [(30, 40)], Preprocessing(24, "letterbox", "lanczos")
    )
    assert Footprint.from_record(json.loads(result.stdout)["footprint"]) == expected


def test_what_a_person_may_write():
    assert as_source_patch("64@source", None) == SourcePatch(64, 64)
    assert as_source_patch(" 64x32PX@Source", "4:4:4") == SourcePatch(64, 32, jpeg="4:4:4")
    assert as_source_patch("2%@source", None) == SourcePatch(share=0.02)
    assert as_source_patch("0.02@source", None) == SourcePatch(share=0.02)
    assert as_source_patch("64px", None) is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: as_threat("64px@source", (9, 9)), "--patch 64px@source is on photos, but there"),
        (lambda: as_source_patch("64px@photo", None), "of the photo itself with @source, as 64px@"),
        (
            lambda: as_source_patch("64px", "4:2:0"),
            "--jpeg needs a patch on the photo, as --patch ",
        ),
        (lambda: as_source_patch("64px@source", "4:1:0"), "jpeg must be a chroma subsampling"),
    ],
)
def test_errors_say_what_to_write(read, message):
    with pytest.raises(ValueError, match=message):
        read()


def test_digits_are_no_photos(tmp_path):
    result = invoke("plan", "digits:4", *TINY, "--patch", "8px@source")
    assert "a patch on the photo needs photos" in str(result.exception)
    result = invoke("masks", "--size", 24, "--patch", "8px@source", "--output", tmp_path / "a.png")
    assert "is on photos, but there are none here" in str(result.exception)
