"""Several processes share a training and find what one alone finds."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from patchdemux.cli import app
from patchdemux.models.loading import read_state
from patchdemux.training import finetune
from tiny_training import classifier, colors, quick

HERE = Path(__file__).parent
RECIPES = {
    "each": quick(masks=(3,)),
    "once": quick(search="once", epochs=1),
    "norm": quick(cutout="random", epochs=1),
}


def train(folder, name):
    exact = {
        "norm": name == "norm",
        "dropout": 0,
    }  # else each learns the statistics of its own share
    model = classifier(**exact)
    found = finetune(model, colors(), folder / name, RECIPES[name])
    return found, model


def work(folder):
    """What each process does; but the first, none of them can see its folder."""
    rank = os.environ["RANK"]
    torch.set_num_threads(1)
    for name in RECIPES:
        found, model = train(Path(folder) / rank, name)
        state = {key: value.tolist() for key, value in model.state_dict().items()}
        answer = {"epochs": found.epochs, "state": state}
        (Path(folder) / f"{name}-{rank}.json").write_text(json.dumps(answer))


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_two_processes_find_the_losses_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    told |= {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    code = f"import test_training_processes as here; here.work({str(tmp_path)!r})"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **told, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert not (tmp_path / "1").exists()
    for name in RECIPES:
        first, second = (
            json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in "01"
        )
        assert first == second  # weights, statistics, and what is answered
        if name == "norm":
            continue
        alone, _ = train(tmp_path / "alone", name)
        np.testing.assert_allclose(
            losses(tmp_path / "0" / name), losses(tmp_path / "alone" / name), rtol=1e-4
        )
        shared = [entry["held_out_loss"] for entry in first["epochs"]]
        np.testing.assert_allclose(
            shared, [entry["held_out_loss"] for entry in alone.epochs], rtol=1e-3
        )
        ours, theirs = (
            read_state(tmp_path / who / name / "last.safetensors") for who in ("0", "alone")
        )
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(
        np.load(tmp_path / "0/once/masks.npy"), np.load(tmp_path / "alone/once/masks.npy")
    )


@pytest.mark.slow
def test_accelerate_launch(tmp_path):
    command = ["finetune", "digits:60", "", "--masks", "2", "--epochs", "1", "--batch-size", "8"]
    command += ["--held-out", "0.2", "--freeze-norm", "--rate", "1e-3", "--json"]
    command[2] = str(tmp_path / "shared")
    launch = ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "patchdemux"]
    result = subprocess.run(
        [sys.executable, "-m", *launch, *command], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)  # only one of them speaks
    command[2] = str(tmp_path / "alone")
    alone = CliRunner().invoke(app, command)
    assert alone.exit_code == 0, alone.output
    np.testing.assert_allclose(losses(tmp_path / "shared"), losses(tmp_path / "alone"), rtol=1e-3)
    expected = json.loads(alone.stdout)["epochs"][0]["held_out_loss"]
    assert answer["epochs"][0]["held_out_loss"] == pytest.approx(expected, rel=1e-3)
