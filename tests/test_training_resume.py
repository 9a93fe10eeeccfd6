"""Trainings that are interrupted, or killed at any moment, end bit for bit as if they had not been."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from patchdemux.training import finetune
from patchdemux.training.cutout import all_hidden
from patchdemux.training.hiding import AT_ONCE
from test_runs import kill_myself_at_file_event
from tiny_training import SIZE, classifier, colors, quick

HERE = Path(__file__).parent
RECIPES = {
    "each": {"masks": (2, 3)},
    "once": {"search": "once"},
    "random": {"cutout": "random", "augment": "crop", "optimizer": "adamw"},
    "plain": {"cutout": "none", "average": 0.0, "freeze_norm": True},
}


def contents(folder):
    """The sum of every file that a training leaves, and the state tensor by tensor."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "state.pt"
    }
    state = torch.load(folder / "state.pt", weights_only=True)
    return files | {"state": repr(flat(state))}


def flat(value):
    if isinstance(value, torch.Tensor):
        return value.shape, hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {key: flat(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [flat(entry) for entry in value]
    return value


def train(folder, recipe, **options):
    return finetune(classifier(), colors(), folder, quick(**RECIPES[recipe]), **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trainings that were never interrupted."""
    made = {}

    def of(recipe):
        if recipe not in made:
            folder = tmp_path_factory.mktemp("training") / recipe
            train(folder, recipe)
            made[recipe] = contents(folder)
        return made[recipe]

    return of


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_interrupted_training_ends_as_if_it_had_not_been(recipe, whole, tmp_path):
    for stop in (2, 6, 11):

        def progress(what, done, total, words, stop=stop):
            if what == "training" and done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", recipe, save_every=4, progress=progress)
    # What another process leaves in torch's generator, and in the modules' modes, does not matter.
    torch.manual_seed(123)
    found = train(tmp_path / "run", recipe, save_every=5)
    assert contents(tmp_path / "run") == whole(recipe)
    again = train(tmp_path / "run", recipe)
    assert again.epochs == found.epochs
    assert contents(tmp_path / "run") == whole(recipe)


def test_a_search_beforehand_is_interrupted_and_finds_the_same(whole, tmp_path):
    data, recipe = colors(3 * AT_ONCE), quick(search="once", epochs=1)
    finetune(classifier(), data, tmp_path / "whole", recipe)

    def progress(what, done, total, words):
        if what == "searching masks" and done == 2 * AT_ONCE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(classifier(), data, tmp_path / "run", recipe, progress=progress)
    masks = np.load(tmp_path / "run/masks.npy")
    assert (masks >= 0).all(axis=1).sum() == 2 * AT_ONCE
    masks[masks[:, 0].argmax()] = -1  # of a group that is half known, all are searched again
    np.save(tmp_path / "run/masks.npy", masks)
    finetune(classifier(), data, tmp_path / "run", recipe)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_masks_found_beforehand_are_those_of_the_first_weights(tmp_path):
    from patchdemux.training.batches import Place, flipped
    from patchdemux.training.hiding import Hider
    from patchdemux.training.losses import asymmetric_losses

    data, recipe = colors(), quick(search="once", epochs=1)
    finetune(classifier(), data, tmp_path / "run", recipe)
    found = np.load(tmp_path / "run/masks.npy")
    losses = asymmetric_losses(recipe)
    targets = torch.tensor(data.targets).float()
    known = Hider(classifier(), recipe, (SIZE, SIZE), losses)
    known.found = found
    searched = Hider(classifier(), quick(), (SIZE, SIZE), losses)
    images = np.flatnonzero(found[:, 0] >= 0)
    place = Place(3, images)
    turns = [flipped(recipe, 3, image) for image in images.tolist()]
    assert 3 < sum(turns) < len(turns) - 3
    shown = torch.stack(
        [data[i].flip(2) if turn else data[i] for i, turn in zip(images, turns, strict=True)]
    )
    hidden = known.hide(place, shown, targets[images])
    expected = searched.hide(place, data.images[images], targets[images])
    for ours, other, turn in zip(hidden, expected, turns, strict=True):
        assert torch.equal(ours, other.flip(2) if turn else other)
    assert known.hidden.shape == all_hidden(known.levels).shape


# --- killing --------------------------------------------------------------------------------------


def serve():
    """Train in a new process for every line of standard input.

    Forking from one process that has imported everything makes many kills affordable.
    """
    import accelerate  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import timm.loss
    import timm.utils  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            if job["die_at"]:
                kill_myself_at_file_event(job["die_at"], job["folder"])
            train(Path(job["folder"]), job["recipe"], save_every=5)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


@pytest.fixture(scope="module")
def server():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", "import test_training_resume; test_training_resume.serve()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:

        def run(folder, recipe, die_at=0):
            job = {"folder": str(folder), "recipe": recipe, "die_at": die_at}
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork and no SIGKILL")
@pytest.mark.parametrize("recipe", ["each", "once"])
def test_a_training_killed_before_operations_on_its_files(recipe, server, tmp_path):
    assert server(tmp_path / "whole", recipe) == 0
    generator, kills = random.Random(2), 0
    for _ in range(12):
        if server(tmp_path / "run", recipe, generator.randint(1, 40)) == 0:
            break
        kills += 1
    assert kills >= 4
    assert server(tmp_path / "run", recipe) == 0
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert not (tmp_path / "run.lock").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork and no SIGKILL")
def test_a_training_killed_before_every_single_operation_on_its_files(server, tmp_path):
    assert server(tmp_path / "whole", "each") == 0
    for event in range(1, 500):
        folder = tmp_path / f"run {event}"
        code = server(folder, "each", event)
        assert code in (0, -signal.SIGKILL)
        assert server(folder, "each") == 0
        assert contents(folder) == contents(tmp_path / "whole")
        if code == 0:
            break
    assert 40 < event < 499
