"""Reading runs: tables in every format, the page about a run, and several runs compared."""

import csv
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchdemux import DoubleMasking, PatchDemux, PatchThreat, cli, mean_average_precision
from patchdemux.data import ImageError, TensorSet, folder, open_dataset
from patchdemux.metrics import (
    SETTINGS,
    average_precision_per_class,
    paper_protocol,
    precision_recall_curve,
)
from patchdemux.models.digit_net import digit_net
from patchdemux.report.compare import compare
from patchdemux.report.facts import facts_of, masks_of
from patchdemux.report.page import render_page
from patchdemux.report.pictures import WITHOUT, check_same, open_again, pictures_of
from patchdemux.report.plots import PLOTS
from patchdemux.report.report import run_page
from patchdemux.report.results import run_table
from patchdemux.report.summary import TABLE_SETTINGS
from patchdemux.report.tables import Column, Table, escape_latex, in_format
from patchdemux.runs import Run, RunError, evaluate
from test_report import words_of

CLASSES = ("ant & bee", "50%_cat", "never", "dog|wolf")
SIZE = (12, 10)


class Colors(nn.Module):
    """Scores from the mean colors of an image, so that hiding pixels matters."""

    def __init__(self, classes=4):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(3, classes)

    def forward(self, images):
        return 8 * self.last(images.mean((2, 3))) - 1


class Noise(TensorSet):
    """Random images; those in `broken` cannot be read."""

    def __init__(self, count=12, seed=0, broken=()):
        generator = np.random.default_rng(seed)
        targets = generator.random((count, 4)) < 0.4
        targets[:, 2] = False
        targets[:2] = [[1, 1, 0, 0], [0, 0, 0, 0]]
        images = torch.from_numpy(generator.random((count, 3, *SIZE), np.float32))
        super().__init__(images, targets, CLASSES, "noise")
        self.broken = broken

    def __getitem__(self, index):
        if index in self.broken:
            raise ImageError(f"{self.names[index]}: the file is <truncated>")
        return super().__getitem__(index)


def demux(masks=(2, 2)):
    return PatchDemux(Colors(), PatchThreat(3, 3), DoubleMasking(masks), batch_size=20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by name: of noise with an image left out, with other masks, and of other noise."""
    path = tmp_path_factory.mktemp("runs")
    broken = {"broken": (3,), "count": 13}
    evaluate(demux(), Noise(**broken), path / "noise_1", on_error="skip")
    evaluate(demux((3, 2)), Noise(**broken), path / "noise_2", on_error="skip")
    evaluate(demux(), Noise(seed=1), path / "other")
    scenes = open_dataset("digits:6")
    digits = PatchDemux(digit_net(), PatchThreat(9, 9), DoubleMasking((2, 2)), batch_size=11)
    evaluate(digits, scenes, path / "digits")
    return {name: Run.open(path / name) for name in ("noise_1", "noise_2", "other", "digits")}


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `patchdemux` with arguments; what it wrote to stdout and stderr."""

    def run(*arguments, expect=0):
        monkeypatch.setattr(sys, "argv", ["patchdemux", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        written = capsys.readouterr()
        assert (stopped.value.code or 0) == expect, written.err
        return written

    return run


# --- tables ---------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_metrics(runs):
    run = runs["noise_1"]
    rows = list(csv.DictReader(io.StringIO(in_format(run_table(run, settings=SETTINGS), "csv"))))
    assert [row["setting"] for row in rows] == list(SETTINGS)
    for row in rows:
        curve = precision_recall_curve(run.bounds(), run.targets, row["setting"])
        for recall in (25, 50, 75):
            assert float(row[f"precision_at_{recall}"]) == 100 * curve.precision_at(recall / 100)
        assert float(row["paper_average_precision"]) == 100 * curve.paper_average_precision()
        assert float(row["average_precision"]) == 100 * curve.average_precision()
        assert float(row["paper_average_precision_error"]) == 100 * curve.error
    location = precision_recall_curve(run.bounds(), run.targets, "location")
    assert f"{100 * location.precision_at(0.5):.3f}" in in_format(run_table(run), "text")


def test_the_papers_protocol(runs):
    run = runs["noise_1"]
    table = run_table(run, "paper")
    answer = json.loads(in_format(table, "json"))
    assert answer["protocol"] == "paper"
    assert answer["unit"] == "percent"
    assert answer["images"] == len(run) == 12
    assert answer["left_out"] == 1
    assert answer["fingerprint"] == run.attributes["fingerprint"]
    for row in answer["rows"]:
        expected = paper_protocol(run.bounds(), run.targets, row["setting"])
        figures = {f"precision_at_{100 * r:.0f}": p for r, p in expected.precision_at.items()}
        figures["paper_average_precision"] = expected.average_precision
        for key, figure in figures.items():
            assert row[key] == (None if np.isnan(figure) else 100 * figure)
    assert any(None in row.values() for row in answer["rows"])
    text = in_format(table, "text").replace("\n", " ")
    assert "Where there is no figure, the published thresholds" in text
    assert "1 image was left out as unreadable, and in no figure." in text
    with pytest.raises(ValueError, match="protocol must be one of"):
        run_table(run, "other")


TABLE = Table(
    r"a_b & c: 50% of {x} \ ~ ^ # $ <1>",
    (
        Column("id", for_people=False, figure=False),
        Column("name", "na|me", figure=False),
        Column("share", "P@25%", "precision"),
    ),
    [
        {"id": "a", "name": "x_1 & y|z", "share": 0.123456},
        {"id": "b", "name": 'say, "so"', "share": float("nan")},
    ],
    ["100% sure."],
    {"run": "é"},
)


def test_latex_is_escaped():
    lines = in_format(TABLE, "latex", 1).splitlines()
    assert r"x\_1 \& y\textbar{}z & 12.3 \\" in lines
    assert 'say, "so" & -- \\\\' in lines
    assert r"na\textbar{}me & P@25\% \\" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert (
        r"\caption{a\_b \& c: 50\% of \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{} "
        r"\# \$ \textless{}1\textgreater{}. Percent. 100\% sure.}"
    ) in lines
    rules = [r"\toprule", r"\midrule", r"\bottomrule"]
    assert [line for line in lines if line.endswith("rule")] == rules
    assert escape_latex("plain (Alg. 2)") == "plain (Alg. 2)"


def test_the_other_formats():
    text = in_format(TABLE, "text").splitlines()
    assert text[2:6] == [
        "na|me       P@25%",
        "-----------------",
        "x_1 & y|z  12.346",
        'say, "so"       –',  # noqa: RUF001
    ]
    assert text[-2:] == ["Percent. P@25%: precision.", "100% sure."]
    markdown = in_format(TABLE, "markdown", 2).splitlines()
    assert markdown[2:6] == [
        r"| na\|me | P@25% |",
        "|---|---:|",
        r"| x\_1 & y\|z | 12.35 |",
        '| say, "so" | – |',  # noqa: RUF001
    ]
    assert list(csv.reader(io.StringIO(in_format(TABLE, "csv")))) == [
        ["id", "name", "share"],
        ["a", "x_1 & y|z", "12.3456"],
        ["b", 'say, "so"', ""],
    ]
    answer = json.loads(in_format(TABLE, "json", 1))
    assert answer["run"] == "é"
    assert [row["share"] for row in answer["rows"]] == [12.3, None]
    with pytest.raises(ValueError, match="format must be one of text, markdown, latex, csv, json"):
        in_format(TABLE, "xls")


# --- the page about a run -------------------------------------------------------------------------


def test_the_page_about_a_run_says_everything(runs):
    run = runs["noise_1"]
    page = run_page(run, Noise(13), images=2, command="patchdemux report <run>")
    html = render_page(page)
    text = words_of(html)
    for words in (
        "every content of one patch of 3 x 3 pixels",
        "model's input of 12 x 10 pixels, in each of these 12 images: 4 masks (2 x 2)",
        "precision float32, 20 views per batch",
        f"Every bound is moved outward by {run.margin:.2g}, the margin measured for this run. It is",
        "1 image could not be read; see the end. The figures are without it.",
        "noise 3: the file is <truncated>",
        "Without a true label, and so without an average precision: never.",
        "patchdemux report <run>",
        *CLASSES,
        *PLOTS,
    ):
        assert words in text
    for setting in ("undefended", "defended", "certified"):
        mean = mean_average_precision(run.bounds(), run.targets, setting)
        assert f"{setting} {100 * mean:.1f}" in text
        for average in average_precision_per_class(run.bounds(), run.targets, setting):
            assert np.isnan(average) or f"{100 * average:.1f}" in text
    for name, value in run.fingerprint.items():
        assert name in text
        if isinstance(value, str):
            assert value in text
    for group in ("versions", "machine"):
        for name, value in run.attributes[group].items():
            assert name in text
            assert str(value) in text
    assert html.count('href="data:image/png') >= 4
    assert [part.title for part in page.gallery] == ["Most robust", "Least robust"]
    assert 'class="blank"' not in html


def test_without_the_data_set_the_maps_are_on_blank_canvases(runs):
    page = run_page(runs["noise_1"], images=1)
    assert WITHOUT in page.gallery_words
    assert all(image.picture is None for part in page.gallery for image in part.images)
    html = render_page(page)
    assert 'class="blank"' in html
    assert "drawn on blank canvases" in words_of(html)
    assert run_page(runs["noise_1"], images=0).gallery == []


def test_regions_that_are_no_boxes_have_shares_but_no_maps(runs):
    run = replace(runs["noise_1"], boxes=None)
    assert masks_of(run) is None
    text = words_of(render_page(run_page(run, threshold=0.9)))
    assert "4 regions, as the defense recorded them" in text
    assert "% of regions" in text


def test_the_margin_is_the_measured_one_or_the_one_that_is_given(runs):
    run = runs["noise_1"]
    answer = json.loads(in_format(run_table(run, margin=0.25), "json"))
    wider = precision_recall_curve(run.bounds(0.25), run.targets, "certified")
    assert answer["margin"] == 0.25
    assert answer["rows"][2]["average_precision"] == 100 * wider.average_precision()
    assert json.loads(in_format(run_table(run), "json"))["margin"] == run.margin
    for margin, words in (
        (0.25, "moved outward by a margin of 0.25, which was given."),
        (0, "No numerical margin is subtracted from the bounds. With other batches"),
    ):
        assert words in words_of(render_page(run_page(run, images=0, margin=margin)))
    unmeasured = replace(run, attributes={**run.attributes, "margin": None})
    with pytest.raises(RunError, match="has no measured margin"):
        run_table(unmeasured)
    assert run_table(unmeasured, margin=0).about["margin"] == 0


def test_another_data_set_is_refused_and_other_pixels_are_told(runs):
    run, same = runs["noise_1"], Noise(13)
    assert check_same(run, same) == ""
    with pytest.raises(RunError, match=r"has no image 'noise 12'$"):
        check_same(run, Noise(12))
    with pytest.raises(RunError, match=r"not the data set of the run: targets was sha256"):
        run_page(run, Noise(13, seed=1))
    darker = TensorSet(same.images / 2, same.targets, CLASSES, "noise")
    assert "not exactly those that were evaluated" in pictures_of(run, darker).note
    small = TensorSet(same.images[..., :8], same.targets, CLASSES, "noise")
    with pytest.raises(RunError, match=r"its images have \(12, 8\) pixels"):
        check_same(run, small)
    with pytest.raises(RunError, match="kind 'tensors', which cannot be opened by its path"):
        open_again(run, "photos")


def test_digit_scenes_are_made_again(runs):
    run = runs["digits"]
    pictures = pictures_of(run)
    assert pictures.note == ""
    assert torch.equal(pictures["digits test 2"], open_dataset("digits:6")[2])
    changed = {**run.attributes, "data": {**run.attributes["data"], "shape": [2]}}
    lost = pictures_of(replace(run, attributes=changed))
    assert lost["digits test 2"] is None
    assert "could not be made again (this is not the data set of the run" in lost.note


def test_photos_are_opened_as_the_run_recorded_it(tmp_path, command):
    photos = tmp_path / "photos"
    photos.mkdir()
    generator = np.random.default_rng(0)
    for i in range(4):
        pixels = generator.integers(0, 255, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(photos / f"{i}.png")
    listed = ["file,cat,dog", *(f"{i}.png,{i % 2},1" for i in range(4))]
    (photos / "labels.csv").write_text("\n".join(listed))
    data = folder(photos, SIZE)
    model = PatchDemux(Colors(2), PatchThreat(3, 3), DoubleMasking((2, 2)), batch_size=9)
    run = evaluate(model, data, tmp_path / "run")
    again = open_again(run, photos)
    assert again.description == data.description
    assert check_same(run, again) == ""
    result = command("report", tmp_path / "run", "--data", photos, "--images", 1)
    assert result.err == f"wrote {tmp_path / 'run.html'}\n"
    assert (tmp_path / "run.html").read_text().count('href="data:image/png') >= 2
    shutil.rmtree(photos)
    result = command("report", tmp_path / "run", "--data", photos, expect=1)
    assert result.err.startswith("error: there is no folder or zip")


# --- comparing ------------------------------------------------------------------------------------


def test_runs_of_the_same_data_compare_without_a_warning(runs):
    comparison = compare([runs["noise_1"], runs["noise_2"]])
    assert comparison.warnings == []
    rows = json.loads(in_format(comparison.table, "json"))["rows"]
    assert [(row["setting"], row["run"]) for row in rows] == [
        (setting, name) for setting in TABLE_SETTINGS for name in ("noise_1", "noise_2")
    ]
    for row in rows:
        run = runs[row["run"]]
        curve = precision_recall_curve(run.bounds(), run.targets, row["setting"])
        assert row["average_precision"] == 100 * curve.average_precision()
    text = words_of(render_page(comparison.page))
    assert "Warning" not in text
    assert "masks=(3, 2)" in text.partition("Where the runs differ")[2]
    assert comparison.svg.count("noise_2") == len(TABLE_SETTINGS)


def test_different_data_is_never_compared_silently(runs, tmp_path):
    comparison = compare([runs["noise_1"], runs["other"]])
    (warning,) = comparison.warnings
    assert warning.startswith("noise_1 and other are of different images or labels (they differ in")
    assert f"Warning: {warning}" in in_format(comparison.table, "markdown").replace("\\", "")
    assert warning in words_of(render_page(comparison.page))
    same = Noise(12, seed=1)
    darker = TensorSet(same.images / 2, same.targets, CLASSES, "noise")
    run = evaluate(demux(), darker, tmp_path / "darker")
    (warning,) = compare([runs["other"], run]).warnings
    assert warning == (
        "other and darker have images of the same names and labels, but their data differ in: "
        "pixels, images_sha256."
    )
    with pytest.raises(ValueError, match="is given twice"):
        compare([run, run])
    with pytest.raises(ValueError, match="needs at least two runs, but got 1"):
        compare([run])


# --- the command line -----------------------------------------------------------------------------


def test_the_commands(runs, tmp_path, command):
    paths = [runs[name].path for name in ("noise_1", "other")]
    answer = json.loads(command("table", paths[0], "--all", "--format", "json").out)
    assert [row["setting"] for row in answer["rows"]] == list(SETTINGS)
    for suffix, start in ((".html", "<!doctype html>"), (".svg", "<?xml")):
        output = tmp_path / f"out{suffix}"
        result = command("compare", *paths, "--format", "csv", "--output", output)
        assert len(list(csv.DictReader(io.StringIO(result.out)))) == 2 * len(TABLE_SETTINGS)
        assert result.err.startswith("warning: noise_1 and other are of different images")
        assert output.read_text().startswith(start)
    error = command("compare", *paths, "--output", tmp_path / "x.pdf", expect=1).err
    assert error == f"error: --output must end in .html or .svg, but got {tmp_path / 'x.pdf'}\n"


def test_an_incomplete_run_is_refused_unless_asked_for(tmp_path, command):
    def stop(status):
        if status.stage == "evaluating" and status.images_done >= 6:
            raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        evaluate(demux(), Noise(), path, images_per_chunk=3, progress=stop)
    error = command("table", path, expect=1).err
    assert error.startswith(f"error: the run at {path} is incomplete: 6 of 12 images are missing")
    assert error.count("\n") == 1
    for name in ("report", "compare"):
        assert "is incomplete" in command(name, path, expect=1).err
    gap = "The run is not finished: 6 of 12 images are in the figures."
    assert gap in command("table", path, "--allow-incomplete").out
    result = command("report", path, "--allow-incomplete")
    assert gap in result.err
    assert gap in words_of((tmp_path / "run.html").read_text())
    run = Run.open(path, allow_incomplete=True)
    assert facts_of(run, "x")["The run"]["finished"] == "not yet"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_page_renders_in_a_browser_without_errors(runs, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(render_page(run_page(runs["digits"])), encoding="utf-8")
    result = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", f"--user-data-dir={tmp_path / 'browser'}"),
            *("--enable-logging=stderr", "--v=0", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr
    words_of(result.stdout.replace("<!DOCTYPE html>", "<!doctype html>"))
    assert result.stdout.count("<svg") == file.read_text().count("<svg")
