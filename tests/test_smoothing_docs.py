"""The examples of docs/defenses-smoothing.md run, one after the other."""

from pathlib import Path

from test_models_docs import examples

PAGE = Path(__file__).parents[1] / "docs" / "defenses-smoothing.md"


def test_the_examples_run(capsys):
    names = {}
    for block in examples(PAGE):
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.splitlines() == [
        "17 views, 4 windows touched",
        "ScoreBounds(1 images, 9 regions, 10 classes)",
    ]
