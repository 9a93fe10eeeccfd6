"""The examples of docs/attack.md run, one after the other, as a reader would type them."""

from pathlib import Path

from test_models_docs import examples

PAGE = Path(__file__).parents[1] / "docs" / "attack.md"


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = list(examples(PAGE))
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "certificates broken: 0" in printed
    assert "torch.Size([2, 10])" in printed
    assert "labels invented" in printed
