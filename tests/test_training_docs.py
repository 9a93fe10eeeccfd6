"""The examples of docs/training.md run, and its commands are commands."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from patchdemux.cli import app
from test_models_docs import examples

PAGE = Path(__file__).parents[1] / "docs" / "training.md"


def commands():
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in examples(PAGE):
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "tuned/best.safetensors" in printed
    assert "('cat', 'dog')" in printed
    for name in re.findall(r"^\| `(\w+\.\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE):
        assert (tmp_path / "tuned" / name).is_file()


@pytest.mark.parametrize("line", commands())
def test_the_commands_are_understood(line):
    name, *arguments = shlex.split(line.rpartition("patchdemux ")[2])
    command = typer.main.get_command(app).commands[name]
    context = command.make_context(name, list(arguments))
    assert context.params["data"] == arguments[0]
