"""The examples of docs/models.md run, one after the other, as a reader would type them."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from guide import examples
from patchdemux.models import coco
from test_models_paper import golden

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("weights").mkdir()
    torch.save({"model": golden("tresnet")[1]}, "weights/tresnet_l.pth")
    network = timm.create_model(coco.ARCHITECTURE, num_classes=80)
    save_file(network.state_dict(), "coco.safetensors")
    monkeypatch.setattr(coco, "WEIGHTS", tmp_path / "coco.safetensors")
    names = {}
    blocks = list(examples(PAGE))
    assert len(blocks) > 10
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "('cat', 'dog', 'bird') (32, 32)" in printed
    assert "(64, 64) torch.Size([5, 2])" in printed
    assert "80 (224, 224)" in printed
