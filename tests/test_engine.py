"""The engine: what it runs, how often, in what mode, and what it does when something goes wrong."""

import weakref
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from patchdemux import Classifier, DoubleMasking, Engine, MaskSet, PatchDemux, PatchThreat
from patchdemux.batch_size import BatchSize
from patchdemux.engine import pinned
from tiny import TinyNet, tiny_images

SIZE = (6, 5)
THREAT = PatchThreat(2, 1)
MASKS = MaskSet.covering(SIZE, THREAT, (3, 2))


def literal_scores(model, images, fill=0.0):
    """Every view on its own, hidden pixel by pixel."""
    views = []
    for first, second in MASKS.unions():
        hidden = torch.from_numpy(MASKS.dense()[first] | MASKS.dense()[second])
        views.append(model(torch.where(hidden, torch.as_tensor(fill), images)))
    return torch.stack(views, dim=1).detach().numpy()


def random_views(seed):
    """Images of any pixels, random masks, and views of one or two of them."""
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.random((3, 2, *SIZE), np.float32))
    hidden = rng.random((5, *SIZE)) < 0.4
    return images, hidden, rng.integers(0, 5, (7, 2))


def pixels(x):
    return x.flatten(1)


@pytest.mark.parametrize("batch_size", [None, 1, 4, 1000])
def test_fill_with_the_mean_of_visible_pixels(batch_size):
    images, hidden, views = random_views(0)
    engine = Engine(Classifier(pixels), fill="mean", batch_size=batch_size)
    seen = engine.masked_scores(images, hidden, views).reshape(3, 7, 2, *SIZE)
    for image, (v, view) in product(range(3), enumerate(views)):
        under = hidden[view].any(axis=0)
        for channel, shown in enumerate(seen[image, v]):
            own = images[image, channel].numpy()
            np.testing.assert_array_equal(shown[~under], own[~under])
            mean = np.float32(own[~under].astype(np.float64).mean())
            np.testing.assert_array_equal(shown[under], np.full(under.sum(), mean))


@pytest.mark.parametrize("fill", ["mean", 0.3, (0.1, 0.9)])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_hidden_pixels_change_nothing_bit_for_bit(fill, batch_size):
    """In no view that hides them: what the model is shown is the same, whatever lies there."""
    for seed in range(5):
        images, hidden, views = random_views(seed)
        shown = Engine(Classifier(pixels), fill=fill, batch_size=batch_size)
        before = shown.masked_scores(images, hidden, views)
        for mask in range(len(hidden)):
            attacked = images.clone()
            attacked[:, :, torch.from_numpy(hidden[mask])] = torch.rand(hidden[mask].sum())
            hides = (views == mask).any(axis=1)
            after = shown.masked_scores(attacked, hidden, views)
            assert before[:, hides].tobytes() == after[:, hides].tobytes()


def test_the_mean_of_no_pixels_is_black():
    everything = np.ones((1, *SIZE), bool)
    engine = Engine(Classifier(pixels), fill="mean")
    assert not engine.masked_scores(
        torch.ones(1, 1, *SIZE), everything, np.zeros((1, 1), int)
    ).any()


@pytest.mark.parametrize("batch_size", [None, 1, 2, 7, 1000])
def test_scores_are_those_of_every_view_on_its_own(batch_size):
    model, images = TinyNet(SIZE, 3, 0), tiny_images(5, SIZE, 1)
    engine = Engine(Classifier(model), batch_size=batch_size)
    scores = engine.masked_scores(images, MASKS.dense(), MASKS.unions())
    np.testing.assert_array_equal(scores, literal_scores(model, images))


def test_fill_per_channel():
    def model(x):
        return x.mean(dim=(2, 3))

    images = torch.full((1, 3, *SIZE), 0.5)
    engine = Engine(Classifier(model), fill=(0.0, 0.5, 1.0))
    scores = engine.masked_scores(images, np.ones((1, *SIZE), bool), np.zeros((1, 1), int))
    np.testing.assert_array_equal(scores[0, 0], [0.0, 0.5, 1.0])
    with pytest.raises(ValueError, match="fill has 3 channels, but the images have 1"):
        engine.scores(images[:, :1])
    with pytest.raises(ValueError, match=r"fill must be pixel values within \[0, 1\]"):
        Engine(Classifier(model), fill=255)
    with pytest.raises(ValueError, match=r'within \[0, 1\] or "mean", but got \'median\''):
        Engine(Classifier(model), fill="median")


def test_certification_takes_one_pass_per_distinct_union_and_one_for_the_image():
    """666 + 1 at 6 x 6, not 1,296; a guard against regressions that no clock can give."""
    size = (32, 32)
    model = TinyNet(size, 4, 0)
    demux = PatchDemux(model, PatchThreat(4, 4), batch_size=256)
    demux.bounds(tiny_images(3, size, 0))
    assert model.views == 3 * (666 + 1)
    assert model.calls == -(-3 * 666 // 256) + 1  # batches go across images
    assert model.largest == 256


def test_normalisation_comes_after_masking_and_belongs_to_the_classifier():
    classifier = Classifier(lambda x: x.mean(dim=(2, 3)), mean=[0.5], std=[0.25])
    images = torch.full((1, 1, *SIZE), 0.75)
    assert Engine(classifier).scores(images).tolist() == [[1.0]]
    hidden = np.ones((1, *SIZE), bool)
    assert Engine(classifier).masked_scores(images, hidden, np.zeros((1, 1), int)).item() == -2.0
    with pytest.raises(ValueError, match="std must be positive"):
        Classifier(lambda x: x, std=[0.0])


def test_eval_mode_without_gradients_restored_afterwards():
    class Watch(nn.Module):
        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            return x.mean(dim=(2, 3))

    frozen = nn.BatchNorm2d(1).eval()
    model = nn.Sequential(nn.Dropout(0.9), frozen, Watch())
    demux = PatchDemux(model, THREAT, DoubleMasking((2, 2)))
    demux.train()
    frozen.eval()
    demux(tiny_images(1, SIZE, 0))
    assert model.training
    assert model[0].training
    assert not frozen.training
    assert torch.is_grad_enabled()


def test_modes_are_restored_after_an_error_too():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("broken")

    model = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        Engine(Classifier(model)).scores(tiny_images(1, SIZE, 0))
    assert model.training


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
    ],
)
def test_batches_are_halved_when_memory_runs_out(error):
    exact = TinyNet(SIZE, 2, 0)

    def model(x):
        if len(x) > 3:
            raise error
        return exact(x)

    images = tiny_images(4, SIZE, 1)
    engine = Engine(Classifier(model), batch_size=20)
    scores = engine.masked_scores(images, MASKS.dense(), MASKS.unions())
    np.testing.assert_array_equal(scores, literal_scores(exact, images))
    assert engine.batch.size == 2

    def hopeless(x):
        raise error

    with pytest.raises(MemoryError, match="ran out with a single view per batch"):
        Engine(Classifier(hopeless)).scores(images)


def test_the_batch_size_grows_while_views_get_faster():
    def search(seconds_per_view):
        batch = BatchSize()
        for _ in range(40):
            batch.took(batch.size, batch.size * seconds_per_view(batch.size))
        return batch.size

    assert search(lambda size: 1 / size) == BatchSize.LIMIT
    assert search(lambda size: 1.0) == BatchSize.START
    assert search(lambda size: 1 / size if size <= 64 else 1 / 60) == 64
    assert BatchSize(5).size == 5


def test_the_search_for_a_batch_size_is_limited_by_the_pixels_of_a_batch(monkeypatch):
    """A guard of the memory: the time per view of a busy machine may be best anywhere."""
    monkeypatch.setattr(BatchSize, "GAIN", 0.0)  # every size counts as faster than the one before
    for pixels, largest in ((16 * 30, 16), (47 * 30, 32), (10 * 30, 8), (3 * 30, 3), (1, 1)):
        monkeypatch.setattr("patchdemux.engine.PIXELS_PER_BATCH", pixels)
        model = TinyNet(SIZE, 3, 0)
        engine = Engine(Classifier(model))
        engine.masked_scores(tiny_images(20, SIZE, 1), MASKS.dense(), MASKS.unions())
        assert model.largest == engine.batch.size == largest
    model = TinyNet(SIZE, 3, 0)
    fixed = Engine(Classifier(model), batch_size=20)
    fixed.masked_scores(tiny_images(20, SIZE, 1), MASKS.dense(), MASKS.unions())
    assert model.largest == 20  # what was asked for is what is done


def test_images_are_pinned_for_a_gpu_only(monkeypatch):
    images = tiny_images(2, SIZE, 0)
    assert pinned(images, torch.device("cpu")) is images
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: "pinned")
    assert pinned(images, torch.device("cuda")) == "pinned"
    there = images.to("meta")
    assert pinned(there, torch.device("cuda")) is there


def test_answers_lie_in_one_array_and_not_among_the_batches():
    """Else every small answer breaks up the memory of a batch, and the process grows and grows."""
    model = TinyNet(SIZE, 3, 0)
    given, alive = [], []

    class Watched(Engine):
        def batched(self, total, compute):
            def watched(*batch):
                alive.append(sum(reference() is not None for reference in given))
                given.append(weakref.ref(scores := compute(*batch)))
                return scores

            return super().batched(total, watched)

    engine = Watched(Classifier(model), batch_size=2)
    engine.masked_scores(tiny_images(3, SIZE, 1), MASKS.dense(), MASKS.unions())
    assert len(given) > 10
    assert max(alive) == 1


def test_progress_counts_views():
    seen = []
    engine = Engine(
        Classifier(TinyNet(SIZE, 1, 0)), batch_size=20, progress=lambda *x: seen.append(x)
    )
    engine.masked_scores(tiny_images(2, SIZE, 0), MASKS.dense(), MASKS.unions())
    total = 2 * len(MASKS.unions())
    assert seen == [(20, total), (40, total), (total, total)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_named(bad):
    def model(x):
        scores = x.mean(dim=(2, 3)).repeat(1, 3)
        scores[(x == 0).all(dim=(1, 2, 3)), 1] = bad
        return scores

    images = torch.ones(3, 1, *SIZE)
    images[2] = 0
    with pytest.raises(
        ValueError, match=rf"gave {bad} as score of image 2, class 1 \(masked view 0\)"
    ):
        Engine(Classifier(model), batch_size=2).scores(images)


def test_the_defended_classifier_drops_in_for_the_module():
    model, images = TinyNet(SIZE, 3, 0), tiny_images(4, SIZE, 1)
    demux = PatchDemux(model, THREAT, DoubleMasking((2, 2), center="undefended"))
    logits = demux(images)
    assert isinstance(demux, nn.Module)
    assert logits.shape == (4, 3)
    assert logits.dtype == torch.float32
    np.testing.assert_array_equal(logits, demux.bounds(images).defended)
    assert set(demux.state_dict()) == {f"classifier.model.{k}" for k in model.state_dict()}
    assert torch.equal(demux.predict(images), logits > 0)
    assert torch.equal(demux.predict(images, 0.9), torch.sigmoid(logits.double()) > 0.9)
    assert "patch of 2 x 1 pixels" in repr(demux)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_is_handed_numbers_of_the_type_of_its_weights(dtype):
    images = tiny_images(4, SIZE, 1)
    model = Classifier(TinyNet(SIZE, 3, 0).to(dtype), mean=[0.5], std=[0.5])
    scores = Engine(model).scores(images)
    assert scores.dtype == np.float32
    own = model.model((images.to(dtype) - 0.5) / 0.5).detach().float()
    np.testing.assert_array_equal(scores, own)


IMAGES = tiny_images(2, SIZE, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.bounds(IMAGES[0]), r"images must be \(image, channel, height, width\)"),
        (lambda d: d.bounds(IMAGES[:0]), r"none of them 0, but got shape \(0, 1, 6, 5\)"),
        (lambda d: d.bounds(IMAGES.numpy()), "images must be a torch tensor, but got ndarray"),
        (lambda d: d.bounds(IMAGES.byte()), "torch.uint8; divide 8-bit images by 255"),
        (lambda d: d.bounds(IMAGES * 255), r"lie in \[0, 1\], but reach from 0 to 255"),
        (lambda d: d.bounds(IMAGES * float("nan")), r"lie in \[0, 1\], but reach from nan"),
        (lambda d: d.bounds(torch.zeros(1, 1, 6, 6)), "6 x 6 pixels, but this .* for 6 x 5"),
        (lambda d: d.predict(IMAGES, 0), "strictly between 0 and 1, but got 0.0"),
        (lambda d: d.predict(IMAGES, 1.5), "strictly between 0 and 1, but got 1.5"),
        (lambda d: d.certify(IMAGES, [[0, 2, 1]] * 2), "but image 0, class 1 is 2"),
        (lambda d: d.certify(IMAGES, [[0, 1, 1]]), r"shape \(2, 3\), but got shape \(1, 3\)"),
        (lambda d: d.certify(IMAGES, [[0, 1, 1]] * 2, method="all"), "method must be one of"),
        (lambda d: d.predict(IMAGES, "high"), "threshold must be a number, but got 'high'"),
        (lambda d: PatchDemux(d.classifier, (2, 1)), r"must be a PatchThreat, but got \(2, 1\)"),
        (lambda d: PatchDemux(d.classifier, THREAT, "both"), "must be a Defense, .* got 'both'"),
        (lambda d: Engine(d.classifier, batch_size=0), "batch_size must be at least 1, but got 0"),
        (lambda d: DoubleMasking(center="mean"), "center must be one of .* but got 'mean'"),
        (lambda d: DoubleMasking(guard="none"), "guard must be one of .* but got 'none'"),
        (lambda d: Classifier(3), "model must be a torch module or a callable"),
        (lambda d: PatchDemux(Classifier(abs, image_size=7), THREAT, image_size=8), "wants images"),
        (
            lambda d: Engine(Classifier(lambda x: x)).scores(IMAGES),
            r"must return logits \(image, class\) for 2 images, but returned \(2, 1, 6, 5\)",
        ),
        (
            lambda d: Engine(Classifier(lambda x: x[:, 0, 0, :0])).scores(IMAGES),
            r"for 2 images, but returned \(2, 0\)",
        ),
        (
            lambda d: Engine(Classifier(d.classifier.model, class_names=["a"])).scores(IMAGES),
            "returned 3 classes, but there are 1 class names",
        ),
    ],
)
def test_bad_input_is_refused_with_a_clear_text(call, message):
    demux = PatchDemux(TinyNet(SIZE, 3, 0), THREAT, DoubleMasking((2, 2)), image_size=SIZE)
    with pytest.raises((ValueError, TypeError), match=message):
        call(demux)
