"""Fine-tuning: batches, steps against a plain loop, what is kept, and everything that is refused."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from patchdemux import Classifier
from patchdemux.data.tensors import TensorSet
from patchdemux.models.loading import load_weights, read_state
from patchdemux.runs.errors import RunError
from patchdemux.training import Recipe, finetune
from patchdemux.training.batches import augmented, crop, generator, places, read_ahead, split
from patchdemux.training.held_out import measure_held_out
from patchdemux.training.losses import asymmetric_losses
from patchdemux.training.plan import planned
from patchdemux.training.processes import Processes
from patchdemux.training.record import Record
from patchdemux.training.state import one_cycle as package_one_cycle
from reference import asymmetric_loss, one_cycle
from tiny_training import CLASSES, SIZE, classifier, colors, network, quick


def logged(folder):
    """The log of a training."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# --- batches --------------------------------------------------------------------------------------


@given(
    count=st.integers(4, 40),
    batch=st.integers(1, 4),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_batches_do_not_depend_on_where_training_began(count, batch, epochs, seed, data):
    recipe = quick(batch_size=batch, epochs=epochs, seed=seed)
    images = np.arange(100, 100 + count)
    every = list(places(recipe, images))
    steps = count // batch
    assert [step for step, _ in every] == list(range(steps * epochs))
    assert [place.epoch for _, place in every] == [step // steps for step, _ in every]
    for epoch in range(epochs):
        seen = np.concatenate([p.images for _, p in every[epoch * steps : (epoch + 1) * steps]])
        assert len(seen) == steps * batch
        assert len(set(seen.tolist())) == len(seen)
        assert set(seen.tolist()) <= set(images.tolist())
    first = data.draw(st.integers(0, steps * epochs))
    for (step, place), (again, other) in zip(
        every[first:], places(recipe, images, first), strict=True
    ):
        assert (step, place.epoch) == (again, other.epoch)
        np.testing.assert_array_equal(place.images, other.images)


def test_an_image_is_shown_the_same_whatever_came_before():
    data, recipe = colors(12), quick(augment="crop", batch_size=3, size=9)
    every = list(read_ahead(recipe, data, places(recipe, np.arange(12))))
    later = list(read_ahead(recipe, data, places(recipe, np.arange(12), 5)))
    assert [step for step, _, _ in later] == [5, 6, 7]
    for (_, place, images), (_, _, again) in zip(every[5:], later, strict=True):
        assert torch.equal(images, again)
        for image, shown in zip(place.images.tolist(), images, strict=True):
            assert torch.equal(shown, augmented(recipe, data, place.epoch, image))
    assert every[0][2].shape == (3, 3, 9, 9)
    assert all(images.min() >= 0 and images.max() <= 1 for _, _, images in every)


def test_flips_and_crops():
    data = colors(60)
    plain, turned = quick(augment="none"), quick(augment="flip")
    flips = 0
    for image in range(60):
        assert torch.equal(augmented(plain, data, 0, image), data[image])
        shown = augmented(turned, data, 0, image)
        if not torch.equal(shown, data[image]):
            flips += 1
            assert torch.equal(shown, data[image].flip(2))
    assert 15 < flips < 45
    image = torch.arange(40 * 50.0).reshape(1, 40, 50).expand(3, 40, 50)
    shares = []
    for number in range(200):
        part = crop(image, 0.4, np.random.default_rng(number))
        top, left = divmod(int(part[0, 0, 0]), 50)
        rows, columns = part.shape[1:]
        assert torch.equal(part, image[:, top : top + rows, left : left + columns])
        shares.append(rows * columns / 2000)
    assert min(shares) >= 0.37
    assert max(shares) > 0.9


@given(count=st.integers(1, 200), share=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_every_image_is_trained_on_or_held_out(count, share, seed):
    training, held_out = split(quick(held_out=share, seed=seed), count)
    assert sorted([*training, *held_out]) == list(range(count))
    assert len(held_out) == round(share * count)


# --- steps ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(steps=st.integers(1, 60), warmup=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 0.9]))
def test_the_rate_goes_up_and_down_once(steps, warmup):
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    recipe = quick(rate=2e-3, warmup=warmup)
    schedule = package_one_cycle(optimizer, recipe, steps)
    if warmup * steps == 1:  # the literal one divides by zero; see below
        assert schedule.get_last_lr()[0] == pytest.approx(2e-3 / 25)
        warmup += 1e-6 / steps
    for step in range(steps):
        rate, momentum = one_cycle(step, steps, 2e-3, warmup)
        assert schedule.get_last_lr()[0] == pytest.approx(rate, rel=1e-5)
        assert optimizer.param_groups[0]["betas"][0] == pytest.approx(momentum, rel=1e-5)
        optimizer.step()
        schedule.step()


def literal_training(recipe, data, optimizer, weight_decay):
    """The same training without any of the package's rooms but its order of the images.

    Also the weights after each step.
    """
    model = network(norm=False, dropout=0).train()
    images, targets = data.images, data.targets
    training, _ = split(recipe, len(data))
    batches = [place.images for _, place in places(recipe, training)]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors}]
    optimizer = optimizer(groups, weight_decay=0)
    history, found = [], []
    for step, batch in enumerate(batches):
        rate, momentum = one_cycle(step, len(batches), recipe.rate, recipe.warmup)
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = rate, (momentum, 0.999)
        p, y = model(images[batch]).sigmoid(), torch.tensor(targets[batch]).float()
        shifted = (p - recipe.clip).clamp(min=0)
        missed = (1 - p) ** recipe.focus_positive * p.log()
        invented = shifted**recipe.focus_negative * (1 - shifted).log()
        loss = -(y * missed + (1 - y) * invented).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        history.append([p.detach().clone() for p in model.parameters()])
    return found, history


@pytest.mark.parametrize(
    ("name", "optimizer"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_plain_training_is_a_plain_loop(name, optimizer, tmp_path):
    recipe = quick(
        cutout="none", augment="none", average=0.9, optimizer=name, weight_decay=0.1, epochs=3
    )
    data, model = colors(), classifier(norm=False, dropout=0)
    finetune(model, data, tmp_path / "run", recipe)
    losses, history = literal_training(recipe, data, optimizer, 0.1)
    lines = logged(tmp_path / "run")
    steps = [line for line in lines if "loss" in line]
    np.testing.assert_allclose([line["loss"] for line in steps], losses, rtol=1e-4)
    for ours, literal in zip(model.parameters(), history[-1], strict=True):
        torch.testing.assert_close(ours.detach(), literal, rtol=1e-3, atol=1e-5)
    # The average of the weights, with a decay that grows to its highest value.
    average = history[0]
    for step, weights in enumerate(history[1:], 1):
        decay = min(1 - (1 + step) ** (-2 / 3), 0.9)
        average = [decay * a + (1 - decay) * w for a, w in zip(average, weights, strict=True)]
    last = read_state(tmp_path / "run/last.safetensors")
    for ours, literal in zip(network(norm=False).state_dict(), average, strict=True):
        torch.testing.assert_close(last[ours], literal, rtol=1e-3, atol=1e-5)


def test_what_is_written_and_kept(tmp_path):
    recipe, data = quick(epochs=4, rate=0.3, cutout="random"), colors()
    model, told = classifier(), []
    found = finetune(
        model, data, tmp_path / "run", recipe, progress=lambda *said: told.append(said)
    )
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "fields.json",
        "state.pt",
        "log.jsonl",
        "losses.png",
        "best.safetensors",
        "last.safetensors",
    }
    lines = logged(tmp_path / "run")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(24))
    assert max(line["rate"] for line in steps) <= 0.3
    assert [line for line in lines if "held_out_loss" in line] == list(found.epochs)
    assert [entry["epoch"] for entry in found.epochs] == [0, 1, 2, 3]
    assert [entry["step"] for entry in found.epochs] == [5, 11, 17, 23]
    with Image.open(tmp_path / "run/losses.png") as plot:
        assert plot.size == (720, 420)
        assert len(plot.convert("RGB").getcolors(10**6)) > 10
    assert told[0][:3] == ("training", 1, 24)
    assert any(what == "measuring" for what, *_ in told)
    assert not model.training
    # The weights that are kept have the lowest loss on the held-out images.
    best = classifier()
    load_weights(best.model, found.weights)
    _, held_out = split(recipe, len(data))
    again = measure_held_out(best, data, held_out, recipe, asymmetric_losses(recipe))
    assert again.loss == found.best["held_out_loss"]
    assert again.loss == min(entry["held_out_loss"] for entry in found.epochs)
    assert again.ap == found.best["held_out_ap"]


def test_the_held_out_loss_is_a_mean_over_images_and_masks():
    recipe, data, model = quick(cutout="none"), colors(), classifier().eval()
    images = np.array([2, 5, 11])
    found = measure_held_out(model, data, images, recipe, asymmetric_losses(recipe))
    with torch.no_grad():
        logits = model(data.images[images]).tolist()
    literal = [
        sum(asymmetric_loss(x, y, 0, 4, 0.05) for x, y in zip(*image, strict=True))
        for image in zip(logits, data.targets[images].tolist(), strict=True)
    ]
    assert found.loss == pytest.approx(np.mean(literal), rel=1e-4)
    assert found.masked_ap == found.ap
    masked = measure_held_out(model, data, images, quick(), asymmetric_losses(recipe))
    assert masked.ap == found.ap
    assert masked.masked_ap <= masked.ap
    assert masked.loss != found.loss


def test_it_learns(tmp_path):
    recipe = quick(epochs=6, rate=0.1, cutout="none", average=0)
    found = finetune(classifier(dropout=0), colors(60), tmp_path / "run", recipe)
    assert found.epochs[-1]["held_out_loss"] < 0.5 * found.epochs[0]["held_out_loss"]
    assert found.epochs[-1]["held_out_ap"] > 0.9


def test_statistics_that_are_kept_and_smaller_images_and_mixed_precision(tmp_path):
    model = classifier()
    before = model.model[1].running_mean.clone()
    recipe = quick(freeze_norm=True, size=10, precision="bfloat16", average=0, epochs=1)
    shapes = set()
    model.model[0].register_forward_hook(
        lambda module, given, answer: shapes.add((given[0].shape[2], answer.dtype))
    )
    finetune(model, colors(), tmp_path / "run", recipe)
    assert torch.equal(model.model[1].running_mean, before)
    # Steps in mixed precision on small images; the search, and what is measured, in full precision.
    assert shapes == {(10, torch.bfloat16), (10, torch.float32), (SIZE, torch.float32)}


def test_planned_steps_and_passes():
    plan = planned(classifier(), colors(), quick(masks=(3,), share=0.5))
    assert (len(plan.training), len(plan.held_out), plan.steps) == (24, 6, 12)
    assert (plan.views_per_image, plan.search_views) == (18, 24 * 18)
    once = planned(classifier(), colors(), quick(masks=(3,), search="once", share=0.5))
    assert once.search_views == 24 * 18
    assert "12 steps of 4; the search for masks takes 432 forward passes at most, 18" in str(once)
    plain = planned(classifier(), colors(), quick(cutout="none"))
    assert plain.search_views == 0
    assert str(plain) == "24 images, and 6 held out; 12 steps of 4"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"cutout": "hide"},
            r"cutout must be one of \('none', 'random', 'greedy', 'views'\), but got 'hide'",
        ),
        ({"search": "twice"}, "search must be one of"),
        ({"augment": "paint"}, "augment must be one of"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"epochs": 0}, "epochs must be at least 1, but got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"patch": 0.0}, "patch is a share, above 0 and at most 1, but got 0"),
        ({"largest": 1.5}, "largest is a share"),
        ({"share": math.nan}, "share is a share"),
        ({"warmup": 1.0}, "warmup must be at least 0 and below 1"),
        ({"average": -0.1}, "average must be"),
        ({"held_out": 1.0}, "held_out must be"),
        ({"clip": -1.0}, "clip must be at least 0"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0"),
        ({"fill": 2.0}, r"fill must be a gray within \[0, 1\], but got 2.0"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"size": 0}, "size must be at least 1, but got 0"),
        ({"masks": ()}, "masks must be numbers of at least 1"),
        ({"masks": (6, 3)}, r"masks must go from coarse to fine, as \(3, 6\), but got \(6, 3\)"),
        ({"search": "once", "augment": "crop"}, 'search="once" finds masks for whole images'),
    ],
)
def test_recipes_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)


def labelled(targets, size=(SIZE, SIZE)):
    return TensorSet(torch.rand(len(targets), 3, *size), targets, CLASSES, "set")


EVERY = np.ones((20, 3), int)


@pytest.mark.parametrize(
    ("model", "data", "settings", "error", "message"),
    [
        (
            classifier(),
            labelled(EVERY * [1, 0, 1]),
            {},
            ValueError,
            "no image to train on has the label green: such a class cannot be learned",
        ),
        (
            Classifier(lambda images: images[:, :, 0, 0]),
            colors(),
            {},
            TypeError,
            "only a torch module with weights can be fine-tuned",
        ),
        (
            Classifier(network(), class_names=["a", "b"]),
            colors(),
            {},
            ValueError,
            r"answers for 2 classes \(a, b, ...\), the data have 3 .*--new-head or with_classes",
        ),
        (
            Classifier(network(classes=4)),
            colors(),
            {},
            ValueError,
            "the model gives 4 scores, but the data have 3 classes: give it a new head",
        ),
        (
            classifier().half(),
            colors(),
            {},
            ValueError,
            r"needs weights in float32, but they are float16: call classifier.float\(\)",
        ),
        (
            classifier().requires_grad_(False),
            colors(),
            {},
            ValueError,
            "all weights are frozen .* there is nothing to learn",
        ),
        (
            Classifier(network(), image_size=20),
            colors(),
            {},
            ValueError,
            r"wants images of \(20, 20\), but the data set gives \(12, 12\)",
        ),
        (
            Classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 3))),
            colors(),
            {"size": 8},
            ValueError,
            "does not take images of 8 x 8 pixels, as size and --train-size ask: .*mat1 and mat2",
        ),
        (
            classifier(),
            colors(),
            {"patch": 0.9},
            ValueError,
            "one of 2 x 2 masks against a patch of 12 x 12 pixels hides a whole image of 12 x 12",
        ),
        (
            classifier(),
            colors(),
            {"masks": (1, 3)},
            ValueError,
            "one of 1 x 1 masks .* hides a whole image .*give a smaller patch than 0.05, or more",
        ),
        (
            classifier(),
            labelled(EVERY, (8, 16)),
            {"patch": 0.8, "cutout": "random"},
            ValueError,
            "does not fit",
        ),
        (
            classifier(),
            colors(),
            {"batch_size": 25},
            ValueError,
            "24 images to train on make no batch of 25; give a smaller batch_size",
        ),
        (
            classifier(),
            colors(),
            {"held_out": 0.0},
            ValueError,
            "0 of 30 images are held out, and none of them has a label: give a larger held_out",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    model, data, settings, error, message, tmp_path
):
    with pytest.raises(error, match=message):
        finetune(model, data, tmp_path / "run", quick(**settings))
    assert not list(tmp_path.iterdir())


def test_a_batch_that_cannot_be_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "__init__", lambda self, device: setattr(self, "count", 3))
    with pytest.raises(ValueError, match="batch_size 4 cannot be shared by 3 processes"):
        finetune(classifier(), colors(), tmp_path / "run", quick())


class Breaks(nn.Module):
    """Answers with no number, or with a gradient that is none, from some call of a training on."""

    def __init__(self, step, gradient):
        super().__init__()
        self.inside, self.step, self.gradient, self.calls = network(), step, gradient, 0

    def forward(self, images):
        logits = self.inside(images)
        self.calls += self.training
        if not self.training or self.calls <= self.step:
            return logits
        if not self.gradient:
            return logits * math.nan
        logits.register_hook(lambda gradient: gradient * math.inf)
        return logits


@pytest.mark.parametrize(
    ("gradient", "what"), [(False, "loss became nan"), (True, "gradient became")]
)
def test_a_loss_that_is_no_number_stops_and_what_was_stored_stays(gradient, what, tmp_path):
    recipe, model = quick(cutout="random"), Classifier(Breaks(7, gradient))
    text = (
        f"the {what}.* in step 8 of 12: begin again in another folder with a lower rate than 0.01"
    )
    with pytest.raises(RunError, match=text):
        finetune(model, colors(), tmp_path / "run", recipe)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert (tmp_path / "run/best.safetensors").is_file()
    assert torch.load(tmp_path / "run/state.pt", weights_only=True)["step"] == 6


def test_the_folder_of_another_fine_tuning_is_refused(tmp_path):
    finetune(classifier(), colors(), tmp_path / "run", quick())
    with pytest.raises(
        RunError, match=r'holds a fine-tuning of something else: recipe was .*"rate"'
    ):
        finetune(classifier(), colors(), tmp_path / "run", quick(rate=1e-3))
    other = classifier()
    other.model[6].bias.data += 1
    with pytest.raises(RunError, match="weights was sha256:"):
        finetune(other, colors(), tmp_path / "run", quick())
    with pytest.raises(RunError, match="names was sha256:"):
        finetune(classifier(), colors(31), tmp_path / "run", quick())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    with pytest.raises(RunError, match="mine is neither empty nor the folder of a fine-tuning"):
        finetune(classifier(), colors(), tmp_path / "mine", quick())


def test_a_folder_that_another_process_writes(tmp_path):
    from patchdemux.runs.lock import only_writer

    with (
        only_writer(tmp_path / "run"),
        pytest.raises(RunError, match="is being written by another process"),
    ):
        finetune(classifier(), colors(), tmp_path / "run", quick())


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="give a folder that can be written to"):
        finetune(classifier(), colors(), tmp_path / "file/run", quick())
    with pytest.raises(RunError, match="cannot write to /dev/full/run"):
        Record(Path("/dev/full/run")).begin({})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits for files")
@pytest.mark.parametrize("limit", [100, 1500, 4000, 12000])
def test_a_full_disk_is_named_and_the_same_call_goes_on(limit, tmp_path):
    """Files that cannot grow beyond a limit stand for a disk that is full at that moment."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        text = "cannot write to .*run: .*; solve this and run the same again to resume"
        with pytest.raises(RunError, match=text):
            finetune(classifier(), colors(), tmp_path / "run", quick())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = finetune(classifier(), colors(), tmp_path / "run", quick())
    whole = finetune(classifier(), colors(), tmp_path / "whole", quick())
    assert found.epochs == whole.epochs
    assert found.weights.read_bytes() == whole.weights.read_bytes()


def test_seeds_of_different_purposes_differ():
    numbers = {
        int(generator(quick(seed=seed), purpose, place).integers(2**62))
        for seed in range(3)
        for purpose in range(6)
        for place in range(3)
    }
    assert len(numbers) == 54
