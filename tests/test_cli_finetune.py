"""`patchdemux finetune`: what it tells, writes, resumes and refuses."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from patchdemux.cli import app
from patchdemux.cli import finetune as command
from patchdemux.models.loading import load_model, read_state

QUICK = ("--masks", "2", "--epochs", "1", "--batch-size", "8", "--held-out", "0.2")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_dry_run_tells_what_it_costs_and_writes_nothing(tmp_path):
    result = invoke("finetune", "digits:200", tmp_path / "run", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Recipe(cutout='greedy', masks=(6,), search='each', " in result.stdout
    assert "rate=5e-05" in result.stdout
    # 5 epochs of 5 steps of 32 images, 72 passes for each of them
    assert "190 images, and 10 held out; 25 steps of 32; the search" in result.stdout
    assert "takes 57,600 forward passes at most, 72 for an image" in result.stdout
    result = invoke(
        "finetune", "digits:200", tmp_path / "run", "--dry-run", "--json", "--masks=3,6"
    )
    answer = json.loads(result.stdout)
    assert answer["recipe"]["masks"] == [3, 6]
    assert answer["steps"] == 25
    assert answer["search_views"] == 25 * 32 * answer["search_views_per_image"]
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_cannot_work(tmp_path):
    result = invoke("finetune", "digits:12", tmp_path / "run", "--dry-run", *QUICK)
    assert result.exit_code == 1
    assert "no image to train on has the label" in str(result.exception)
    result = invoke("finetune", "digits:9", tmp_path / "run", "--masks", "six")
    assert "--masks must be as 6 or 3,6, but got 'six'" in str(result.exception)
    result = invoke("finetune", "digits:9", tmp_path / "run", "--held-out", "2")
    assert "held_out must be at least 0 and below 1" in str(result.exception)


def test_a_small_run_from_end_to_end(tmp_path, monkeypatch):
    data = ("finetune", "digits:60", tmp_path / "run", *QUICK)
    result = invoke(*data)
    assert result.exit_code == 0, result.output
    assert "epoch 1: held-out loss " in result.stdout
    assert "(kept)" in result.stdout
    assert f"weights: {tmp_path / 'run/best.safetensors'}" in result.stdout
    assert (tmp_path / "run/losses.png").is_file()
    again = invoke(*data, "--json")  # all is done: it only reads
    answer = json.loads(again.stdout)
    assert answer["weights"] == str(tmp_path / "run/best.safetensors")
    assert answer["epochs"][0]["held_out_loss"] > 0
    other = invoke(*data, "--rate", "1e-3")
    assert other.exit_code == 1
    assert "holds a fine-tuning of something else: recipe was" in str(other.exception)
    # The weights fit where they came from, and are others.
    tuned = load_model("digits", weights=answer["weights"])
    shipped = load_model("digits")
    with torch.no_grad():
        images = torch.rand(1, 3, 62, 62)
        assert not torch.equal(tuned(images), shipped(images))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_finetuning", interrupted)
    stopped = invoke(*data)
    assert stopped.exit_code == 130
    assert stopped.stderr.endswith("stopped: what is stored stays, and the same command resumes\n")


@pytest.fixture
def pets(tmp_path):
    """Twelve photos with cats, dogs or both."""
    random = np.random.default_rng(0)
    rows = ["file,cat,dog"]
    (tmp_path / "pets").mkdir()
    for i in range(12):
        Image.fromarray(random.integers(0, 256, (20, 20, 3), np.uint8)).save(
            tmp_path / f"pets/{i}.png"
        )
        rows.append(f"{i}.png,{int(i % 3 > 0)},{int(i % 3 < 2)}")
    (tmp_path / "pets/labels.csv").write_text("\n".join(rows))
    return tmp_path / "pets"


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_transfer_to_other_classes(suffix, pets, tmp_path):
    torch.manual_seed(1)
    state = timm.create_model("test_resnet", num_classes=7).state_dict()
    weights = tmp_path / f"seven.{suffix}"
    save_file(state, weights) if suffix == "safetensors" else torch.save(state, weights)
    data = ("finetune", pets, tmp_path / "run", "--size", 32, "--model", "timm:test_resnet")
    data = (*data, "--weights", weights, "--cutout", "none", "--epochs", 1, "--batch-size", 4)
    data = (*data, "--held-out", "0.3", "--rate", "1e-9", "--freeze-norm", "--average", "0")
    refused = invoke(*data)
    assert "does not fit the model" in str(refused.exception)
    assert "has shape (7, " in str(refused.exception)
    result = invoke(*data, "--new-head", "--json")
    assert result.exit_code == 0, result.output
    found = read_state(json.loads(result.stdout)["weights"])
    assert len(found["fc.weight"]) == 2
    for name, tensor in state.items():
        if not name.startswith("fc."):
            assert torch.allclose(found[name].float(), tensor.float(), atol=1e-4), name


def test_weights_of_another_model_are_named_with_a_new_head_too(pets, tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    data = ("finetune", pets, tmp_path / "run", "--size", 32, "--model", "timm:test_resnet")
    result = invoke(*data, "--weights", tmp_path / "x.safetensors", "--new-head")
    assert "does not fit the model: conv1" in str(result.exception)


def test_progress_without_a_terminal_is_told_in_lines(monkeypatch, capsys):
    monkeypatch.setattr(command, "LOG_EVERY", -1.0)
    with command.training_bar() as progress:
        progress("training", 3, 12, "epoch 1 of 2, loss 3.21")
        progress("searching masks", 1200, 4000, "")
    told = capsys.readouterr().err
    assert "training: 3 of 12, epoch 1 of 2, loss 3.21\n" in told
    assert "searching masks: 1,200 of 4,000\n" in told
    monkeypatch.setenv("RANK", "1")
    with command.training_bar() as progress:
        progress("training", 3, 12, "")
    assert "training" not in capsys.readouterr().err
