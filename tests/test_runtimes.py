"""Runtimes: they answer as torch does, are exported once, and are refused when they do not fit."""

import copy
import ctypes
import pickle
import subprocess
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from patchdemux import Classifier, DoubleMasking, Engine, PatchDemux, PatchThreat
from patchdemux.allocator import keep_freed_memory
from patchdemux.engine import one_thread
from patchdemux.runtimes import RUNTIMES, RuntimeClassifier, available, fastest, make_runtime
from patchdemux.runtimes.cache import cache_folder
from patchdemux.runtimes.fastest import timing_views
from patchdemux.runtimes.openvino import OpenVINOSession

SIZE = (16, 12)


class Convolutions(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3)
        )
        self.last = nn.Linear(8, 4)

    def forward(self, images):
        return self.last(self.features(images).mean(dim=(2, 3)))


def classifier(seed=0, model=None):
    model = Convolutions(seed) if model is None else model
    return Classifier(model.eval(), class_names="abcd", mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])


def images(count=5, seed=0):
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


def masked_scores(tested, batch_size):
    hidden, views = timing_views(images()[0], 64)
    return Engine(tested, batch_size=batch_size).masked_scores(images(2), hidden, views)


def offered():
    """Every runtime and precision there is; those that this machine lacks are skipped."""
    here = available(classifier())
    pairs = [(name, precision) for name in RUNTIMES for precision in ("float32", "bfloat16")]
    lacks = pytest.mark.skip(reason="not installed, or the processor does not have it")
    return [
        pytest.param(*pair, marks=() if pair in here else lacks)
        for pair in pairs
        if pair not in (("torch", "float32"), ("onnx", "bfloat16"))
    ]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATCHDEMUX_CACHE", str(folder))
        yield folder


# --- the same answers ---------------------------------------------------------------------------


def check_answers(name, precision):
    source = classifier()
    truth = masked_scores(source, 16)
    tested = make_runtime(source, name, precision)
    allowed = 1e-5 if precision == "float32" else 0.03
    with warnings.catch_warnings():  # the compiler uses what torch is about to remove
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\..*")
        for batch_size in (7, 64):
            scores = masked_scores(tested, batch_size)
            assert scores.dtype == np.float32
            np.testing.assert_allclose(scores, truth, atol=allowed)
    assert tested.difference <= allowed
    return source, tested


@pytest.mark.parametrize(("name", "precision"), offered())
def test_every_runtime_answers_as_torch_does_at_any_batch_size(name, precision, monkeypatch):
    # Generating code takes long, so the compiler only traces here.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    source, tested = check_answers(name, precision)
    assert (tested.runtime, tested.precision) == (name, precision)
    assert f"runtime={name}, precision={precision}" in repr(tested)
    assert tested.class_names == source.class_names
    assert set(tested.state_dict()) == set(source.state_dict())
    assert make_runtime(tested, name, precision) is tested


@pytest.mark.slow
def test_compiled_code_answers_as_torch_does():
    check_answers("compile", "float32")


def test_torch_in_float32_is_the_classifier_itself():
    source = classifier()
    assert make_runtime(source) is source
    assert (source.runtime, source.precision) == ("torch", "float32")
    half = RuntimeClassifier(source, RUNTIMES["torch"], "bfloat16")
    np.testing.assert_array_equal(masked_scores(make_runtime(half), 8), masked_scores(source, 8))


def test_a_defended_classifier_takes_a_runtime_and_keeps_one_that_it_is_given():
    pytest.importorskip("openvino")
    threat, defense = PatchThreat(3, 3), DoubleMasking(2)
    source = classifier()
    demux = PatchDemux(source, threat, defense, runtime="openvino")
    plain = PatchDemux(source, threat, defense)
    assert demux.classifier.runtime == "openvino"
    assert plain.classifier is source
    assert set(demux.state_dict()) == set(plain.state_dict())
    torch.testing.assert_close(demux(images()), plain(images()), atol=1e-5, rtol=0)
    assert PatchDemux(demux.classifier, threat).classifier is demux.classifier


def test_a_classifier_of_ones_own_keeps_its_own_forward():
    pytest.importorskip("openvino")

    class Doubled(Classifier):
        def forward(self, images):
            return 2 * super().forward(images)

    doubled = Doubled(Convolutions().eval())
    scores = masked_scores(make_runtime(doubled, "openvino"), 8)
    np.testing.assert_allclose(scores, masked_scores(doubled, 8), atol=1e-5)


def test_convolutions_get_channels_last_and_others_the_usual_layout():
    seen = []

    class Watch(nn.Module):
        def forward(self, images):
            seen.append(images.is_contiguous())
            return images.mean(dim=(2, 3)) if images.ndim == 4 else images

    class Viewing(nn.Sequential):
        def forward(self, images):
            features = super().forward(images)
            return features.view(len(images), -1)

    Engine(Classifier(nn.Sequential(Watch()))).scores(images())
    Engine(Classifier(nn.Sequential(Watch(), nn.Flatten(), nn.Linear(3, 2)))).scores(images())
    assert seen == [True, True]
    Engine(Classifier(nn.Sequential(nn.Conv2d(3, 2, 3), Watch()))).scores(images())
    assert seen == [True, True, False]
    old = Classifier(Viewing(nn.Conv2d(3, 2, 3)))
    scores = Engine(old).scores(images())
    assert not old.channels_last
    np.testing.assert_allclose(scores, old.model(images()).detach(), atol=1e-5)


def test_copies_and_other_processes_make_their_own_sessions():
    pytest.importorskip("openvino")
    tested = make_runtime(classifier(), "openvino")
    scores = masked_scores(tested, 8)
    for same in (copy.deepcopy(tested), pickle.loads(pickle.dumps(tested))):
        np.testing.assert_array_equal(masked_scores(same, 8), scores)


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_model_is_exported_once(name, library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.setenv("PATCHDEMUX_CACHE", str(tmp_path / "new"))

    def entries():
        return len(list((tmp_path / "new").iterdir()))

    views = images()
    make_runtime(classifier(), name, views=views)
    (entry,) = (tmp_path / "new").iterdir()
    written = {file: file.stat().st_mtime_ns for file in entry.iterdir()}
    assert entry.name.startswith(f"{name}-")
    make_runtime(classifier(), name, views=views)
    assert {file: file.stat().st_mtime_ns for file in entry.iterdir()} == written
    assert entries() == 1
    if name == "openvino":  # exporting for ONNX takes longer, and is no different
        make_runtime(classifier(seed=1), name, views=views)
        assert entries() == 2  # other weights
        make_runtime(classifier(), name, views=views[..., :10])
        assert entries() == 3  # another size
        make_runtime(Classifier(Convolutions().eval()), name, views=views)
        assert entries() == 4  # another normalisation


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    openvino = pytest.importorskip("openvino")
    monkeypatch.setenv("PATCHDEMUX_CACHE", str(tmp_path))

    def full(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(openvino, "save_model", full)
    with pytest.raises(OSError, match="No space left"):
        make_runtime(classifier(), "openvino", views=images())
    assert list(tmp_path.iterdir()) == []


def test_where_exports_are_kept(monkeypatch):
    monkeypatch.setenv("PATCHDEMUX_CACHE", "/somewhere")
    assert str(cache_folder()) == "/somewhere"
    monkeypatch.delenv("PATCHDEMUX_CACHE")
    assert cache_folder().name == "patchdemux"


# --- refusing -----------------------------------------------------------------------------------


class ByBatch(Convolutions):
    """What a tracer cannot see: the answer depends on a value that it takes for a constant."""

    shift = 0.0

    def forward(self, images):
        return super().forward(images) + self.shift


def test_a_runtime_that_answers_otherwise_is_refused():
    pytest.importorskip("openvino")
    model = ByBatch()
    make_runtime(classifier(model=model), "openvino", views=images())
    model.shift = 0.01  # the stored export does not have it, and cannot be told from it
    text = (
        r"the runtime openvino in float32 gives scores that differ by 0.01 from torch in float32, "
        r"more than 0.000\d+: .* delete its old export in"
    )
    with pytest.raises(ValueError, match=text):
        make_runtime(classifier(model=model), "openvino", views=images())
    lazy = PatchDemux(classifier(model=model), PatchThreat(3, 3), runtime="openvino")
    with pytest.raises(
        ValueError, match=text
    ):  # without views, before the first score is given out
        lazy(images())


def test_half_precision_in_which_scores_vanish_is_refused():
    tiny = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE[0] * SIZE[1], 4, bias=False))
    tiny[1].weight.data *= 1e-9
    vanishing = RuntimeClassifier(Classifier(tiny), RUNTIMES["torch"], "float16")
    with pytest.raises(ValueError, match="the runtime torch in float16 gives scores that differ"):
        Engine(vanishing).scores(images())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: make_runtime(c, "tvm"), ValueError, "runtime must be one of .* but got 'tvm'"),
        (lambda c: make_runtime(c, "torch", "int8"), ValueError, "precision must be one of"),
        (
            lambda c: make_runtime(c, "onnx", "bfloat16"),
            ValueError,
            r"the runtime onnx has no bfloat16 on this machine \(cpu\), only float32",
        ),
        (
            lambda c: make_runtime(c.to("meta"), "openvino"),
            ValueError,
            "the runtime openvino runs on the CPU, but the model is on meta",
        ),
        (
            lambda c: make_runtime(
                Classifier(lambda x: x.mean((2, 3))), "openvino", views=images()
            ),
            TypeError,
            "openvino exports torch modules, but the model is a function",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_clear_text(call, error, message):
    pytest.importorskip("openvino")
    pytest.importorskip("onnxruntime")
    with pytest.raises(error, match=message):
        call(classifier())


@pytest.mark.parametrize(("name", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_extra_is_named(name, library):
    code = (
        f"import sys; sys.modules['{library}'] = None\n"
        "from torch import nn\n"
        "from patchdemux import Classifier\n"
        "from patchdemux.runtimes import available, make_runtime\n"
        "classifier = Classifier(nn.Flatten())\n"
        f"print('{name}' in dict(available(classifier)))\n"
        f"try: make_runtime(classifier, '{name}')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False\n")
    assert f"pip install 'patchdemux[{name}]'" in done.stdout


# --- the fastest --------------------------------------------------------------------------------


def test_the_fastest_is_found_and_told():
    found = fastest(classifier(), images()[0])
    assert list(found.seconds.values()) == sorted(found.seconds.values())
    assert next(iter(found.seconds)) == (found.runtime, found.precision)
    assert {precision for _, precision in found.seconds} == {"float32"}
    assert "compile" not in dict(found.seconds)
    assert str(found).startswith(f"{found.runtime} float32: ")
    assert "ms per view" in str(found)
    assert found.refused == {}


def test_candidates_that_cannot_run_the_model_are_left_out_with_a_reason():
    plain = Classifier(lambda x: x.mean(dim=(2, 3)))
    found = fastest(plain, images()[0], [("torch", "float32"), ("openvino", "float32")])
    assert found.classifier is plain
    assert list(found.refused) == [("openvino", "float32")]
    with pytest.raises(ValueError, match="no runtime can run this model"):
        fastest(plain, images()[0], [("openvino", "float32")])


# --- the allocator ------------------------------------------------------------------------------


def test_freed_memory_is_kept_unless_the_user_says_no(monkeypatch):
    on_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
    monkeypatch.delenv("PATCHDEMUX_MALLOPT", raising=False)
    keep_freed_memory.cache_clear()
    assert keep_freed_memory() is on_glibc
    monkeypatch.setenv("PATCHDEMUX_MALLOPT", "0")
    assert keep_freed_memory() is on_glibc  # asked once
    keep_freed_memory.cache_clear()
    assert keep_freed_memory() is False
    keep_freed_memory.cache_clear()


class Streams:
    """In place of OpenVINO's: answers at once, and remembers the pieces."""

    def __init__(self):
        self.pieces = []

    def set_callback(self, keep):
        self.keep = keep

    def start_async(self, inputs, place, share_inputs):
        (piece,) = inputs
        self.pieces.append(len(piece))
        output = SimpleNamespace(data=piece.sum(axis=(1, 2, 3))[:, None])
        self.keep(SimpleNamespace(get_output_tensor=lambda _: output), place)

    def wait_all(self):
        pass


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_a_batch_goes_evenly_to_all_streams(streams):
    for views in range(1, 30):
        fake = Streams()
        images = torch.rand(views, 3, 2, 2)
        answers = OpenVINOSession(fake, streams)(images)
        assert torch.allclose(answers[:, 0], images.sum(dim=(1, 2, 3)))
        assert max(fake.pieces) <= OpenVINOSession.PIECE
        assert max(fake.pieces) - min(fake.pieces) <= 1
        assert len(fake.pieces) % streams == 0 or len(fake.pieces) == views


def test_views_are_made_by_one_thread_beside_other_runtimes():
    threads = torch.get_num_threads()
    with one_thread(False):
        assert torch.get_num_threads() == threads
    with one_thread(True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
    assert [name for name, runtime in RUNTIMES.items() if runtime.own_threads] == [
        "onnx",
        "openvino",
    ]


def test_all_views_that_a_check_is_given_are_compared():
    class Strays(type(RUNTIMES["torch"])):
        """Right on the first views only."""

        def prepare(self, classifier, shape, precision):
            plain = super().prepare(classifier, shape, precision)
            return lambda images: plain(images) + (torch.arange(len(images)) > 10)[:, None]

    made = RuntimeClassifier(classifier(), Strays(), "float32")
    made.check(images(8))
    with pytest.raises(ValueError, match="differ by 1 from torch"):
        made.check(images(12))
