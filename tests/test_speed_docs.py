"""The examples of docs/speed.md run, one after the other, as a reader would type them."""

from pathlib import Path

import pytest

from test_models_docs import examples

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATCHDEMUX_CACHE", str(tmp_path / "exported"))
    names = {}
    for block in examples(PAGE):
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "labels are present for sure" in printed
    assert "the fastest is" in printed
    assert "every bound was moved by" in printed
    assert "\nTrue\n" in printed
    assert names["decision"].views.max() <= 40
    assert names["sharing"].classifier.runtime == "shared:evidence.1"
