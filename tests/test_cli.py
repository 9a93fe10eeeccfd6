"""The command line: the demo runs, help teaches, errors are one line."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from patchdemux import __version__, cli


def run(*arguments):
    command = [sys.executable, "-m", "patchdemux", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_demo_writes_a_page_and_prints_the_table(tmp_path):
    result = run("demo", "--scenes", "6", "--masks", "3", "--output", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert "9 masks (3 x 3)" in result.stdout
    assert "6 scenes, 46 forward passes each" in result.stdout
    assert "Exact worst case" in result.stdout
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("scene 5") > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--patch", "3"],
            "error: fraction is the patch's share of the image, above 0 and at most",
        ),
        (["--output", __file__], "error: [Errno"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments, message):
    result = run("demo", "--scenes", "2", "--masks", "1", *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    debugged = run("--debug", "demo", "--scenes", "2", "--masks", "1", *arguments)
    assert "Traceback" in debugged.stderr


def test_help_teaches_with_an_example():
    result = CliRunner().invoke(cli.app, ["demo", "--help"])
    assert result.exit_code == 0
    assert "patchdemux demo --scenes 50" in result.stdout


def test_version():
    assert run("--version").stdout == f"patchdemux {__version__}\n"


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['typer'] = None\nfrom patchdemux.__main__ import main\nmain()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "the command line needs typer: pip install 'patchdemux[cli]'" in result.stderr
