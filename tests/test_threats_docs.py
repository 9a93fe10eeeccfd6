"""docs/threats.md: its example runs, its figures are those of the benchmark, its options exist."""

import re
import sys
from pathlib import Path

import pytest

from patchdemux.cli.words import as_source_patch, as_threat
from test_models_docs import examples

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "threats.md"


def test_the_example_runs(capsys):
    for block in examples(PAGE):
        exec(compile(block, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "(93, 209, 61, 46)\npatch of 64 x 64 pixels of the photo: it reaches at most" in printed
    assert "proved to cover every patch of 61 x 47 pixels" in printed


def test_the_figures_are_those_of_the_benchmark(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    benchmark = pytest.importorskip("benchmarks.footprint", reason="the benchmarks are not here")
    benchmark.growth()
    printed = [line for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert len(printed) == 28
    page = [line for line in PAGE.read_text("utf-8").splitlines() if line in printed]
    assert page == printed


def test_the_patches_of_the_page_are_understood():
    written = re.findall(r"`--patch ([^ `]+)(?: --jpeg ([^`]+))?`", PAGE.read_text("utf-8"))
    assert len(written) == 7
    for patch, jpeg in written:
        assert as_source_patch(patch, jpeg or None) or as_threat(patch, (448, 448))
