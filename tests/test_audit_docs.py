"""The example of docs/audit.md runs, as a reader would type it."""

from pathlib import Path

from guide import examples

PAGE = Path(__file__).parents[1] / "docs" / "audit.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = examples(PAGE)
    exec(compile(block, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "broken: 0" in printed
    assert "2 images computed again in 2 sizes of batches" in printed
    assert "6 patches on 2 images" in printed
