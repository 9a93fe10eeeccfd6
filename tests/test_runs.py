"""Runs: written, killed, resumed, refused, and read again."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray
import zarr
from torch import nn

from patchdemux import Classifier, DoubleMasking, PatchDemux, PatchThreat, ScoreBounds
from patchdemux.batch_size import BatchSize
from patchdemux.data.base import ImageError, ImageSet
from patchdemux.runs import Run, RunError, Status, differences, evaluate, plan
from patchdemux.runs.lock import only_writer
from patchdemux.runs.store import SCORES, RunStore

HERE = Path(__file__).parent
SIZE, THREAT, CLASSES = (8, 7), PatchThreat(2, 2), ("ant", "bee", "cat")
VIEWS = 6 * 7 // 2 + 1  # 3 x 2 masks


class Noise(ImageSet):
    """Random images; those in `broken` cannot be read."""

    def __init__(self, count=11, seed=0, broken=(), **description):
        generator = np.random.default_rng(seed)
        self.class_names = CLASSES
        self.names = tuple(f"ímage {i}.png" for i in range(count))
        self.targets = generator.random((count, 3)) < 0.4
        self.image_size = SIZE
        self.description = {"source": "noise", "resize": "none", **description}
        self.pixels = torch.from_numpy(generator.random((count, 3, *SIZE), np.float32))
        self.broken = broken

    def __getitem__(self, index):
        if index in self.broken:
            raise ImageError(f"{self.names[index]}: the file is truncated")
        return self.pixels[index]


class Company(nn.Module):
    """The scores depend on what else is in the batch, so that any other batches are noticed."""

    def __init__(self, seed=0, sleep=0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.last = nn.Linear(3 * SIZE[0] * SIZE[1], len(CLASSES))
        self.sleep = sleep
        self.sizes = []

    def forward(self, images):
        time.sleep(self.sleep)
        self.sizes.append(len(images))
        scores = self.last(images.flatten(1))
        return scores + scores.mean() + 0.01 * len(images)


def defended(seed=0, sleep=0.0, *, threat=THREAT, masks=(3, 2), batch_size=10, **options):
    model = Classifier(Company(seed, sleep), mean=options.pop("mean", None))
    return PatchDemux(model, threat, DoubleMasking(masks), batch_size=batch_size, **options)


def contents(path):
    """The sum of every file of a run but the one with the times in it."""
    files = [f for f in sorted(path.rglob("*")) if f.is_file() and f != path / "zarr.json"]
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted: 11 images in chunks of 2."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    evaluate(defended(), Noise(), path, images_per_chunk=2)
    return path


# --- what is stored ---------------------------------------------------------------------------


def test_what_is_stored_is_what_the_defended_model_says(whole):
    demux, data, run = defended(), Noise(), Run.open(whole)
    stored = run.bounds(margin=0)
    for start in range(0, len(data), 2):
        chunk = slice(start, min(start + 2, len(data)))
        truth = demux.bounds(data.pixels[chunk])
        for name in SCORES:
            np.testing.assert_array_equal(getattr(stored, name)[chunk], getattr(truth, name))
    np.testing.assert_array_equal(run.targets, data.targets)
    np.testing.assert_array_equal(run.boxes, demux.defense.mask_set(SIZE, THREAT).boxes)
    assert run.names == data.names
    assert run.class_names == CLASSES
    assert run.threat == THREAT
    assert run.complete
    assert len(run) == 11
    assert run.left_out == ()
    assert repr(run).endswith(
        "whole', 11 images, DoubleMasking(masks=(3, 2), center='median', guard='both'))"
    )


def test_xarray_reads_it_with_named_dimensions_and_no_warning(whole):
    with xarray.open_zarr(whole) as data:
        assert dict(data.sizes) == {"image": 11, "region": 6, "class": 3, "side": 4}
        assert data.lower.dims == data.upper.dims == ("image", "region", "class")
        assert data.clean.dims == data.defended.dims == data.targets.dims == ("image", "class")
        assert {"name", "class", "box", "side"} == set(data.coords)
        assert data.name.values.tolist() == list(Noise().names)
        assert data.done.values.all()
        bee = data.upper.sel({"class": "bee"}).max("region").values
        np.testing.assert_array_equal(bee, Run.open(whole).bounds(0).upper[:, :, 1].max(axis=1))
        np.testing.assert_array_equal(data.box.sel(side="width"), Run.open(whole).boxes[:, 3])
        recorded = data.attrs
    assert recorded["class_names"] == list(CLASSES)
    assert recorded["threat"] == {"height": 2, "width": 2}
    assert recorded["data"] == {"source": "noise", "resize": "none"}
    assert recorded["batch_size"] == 10
    assert recorded["precision"] == "float32"
    assert recorded["fill"] == [0.0]
    assert recorded["margin"]["value"] > 0  # other batches give other scores here
    assert recorded["views_per_image"] == VIEWS
    assert set(recorded["versions"]) == {"patchdemux", "torch", "numpy", "python"}
    assert recorded["fingerprint"].startswith("sha256:")
    assert recorded["started"] <= recorded["finished"]
    json.dumps(recorded)


@pytest.mark.parametrize("table", ["occlude", "smooth", "incompressible"])
def test_size_on_disk(tmp_path, table):
    """36 regions x 80 classes in at most 25 kB per image, whatever the scores are."""
    count = 32
    if table == "incompressible":
        noise = np.random.default_rng(0).standard_normal((3, count, 36, 80), np.float32)
        clean, lower, upper = noise[0, :, 0], -abs(noise[1]), abs(noise[2])
        bounds = ScoreBounds(clean, np.zeros_like(clean), lower, upper)
    else:
        scores = np.load(HERE / "golden" / f"doublemask_coco36_{table}.npz")["scores"]
        scores = np.log(scores.clip(1e-30))[np.arange(count) % len(scores)]  # much like logits
        noise = np.random.default_rng(0).normal(0, 0.01, scores.shape)  # and no two images alike
        scores = scores + noise + noise.swapaxes(1, 2)
        bounds = ScoreBounds.from_pairs(scores.astype(np.float32), scores[:, 0, 0].astype("f4"))
    store = RunStore.create(
        tmp_path / "run",
        names=[f"COCO_val2014_{i:012}.jpg" for i in range(count)],
        targets=np.zeros((count, 80), bool),
        class_names=[f"class {i}" for i in range(80)],
        regions=36,
        boxes=None,
        images_per_chunk=16,
        attributes={},
    )
    for start in range(0, count, 16):
        store.write(range(start, start + 16), bounds[start : start + 16])
    disk = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    print(f"{table}: {disk / count / 1000:.1f} kB per image")
    assert disk / count <= 25_000


def test_a_defense_without_undefended_scores_or_regions_that_are_boxes(tmp_path):
    class Shy(DoubleMasking):
        def bounds(self, engine, images, threat):
            return dataclasses.replace(super().bounds(engine, images, threat), clean=None)

        def views(self, image_size, threat):
            return None

        region_boxes = views

    demux = PatchDemux(Company(), THREAT, Shy((3, 2)), batch_size=100)
    run = evaluate(demux, Noise(2), tmp_path / "run")
    pixels = Noise(2).pixels
    np.testing.assert_array_equal(run.bounds().clean, demux.engine.scores(pixels))
    assert run.boxes is None
    assert run.attributes["views_per_image"] == VIEWS


# --- killing ----------------------------------------------------------------------------------


def serve():
    """Evaluate in a new process for every line of standard input.

    Forking from one process that has imported everything makes many kills affordable.
    """
    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            if job["die_at"]:
                kill_myself_at_file_event(job["die_at"], job["path"])
            evaluate(defended(sleep=job["sleep"]), Noise(), job["path"], images_per_chunk=2)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def kill_myself_at_file_event(number, path):
    """SIGKILL just before the n-th opening, renaming, ... of a file of the run."""
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.mkdir", "os.remove") and path in str(arguments[0]):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.fixture(scope="module")
def server():
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", "import test_runs; test_runs.serve()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:

        def run(path, sleep=0.0, die_at=0, kill_after=None):
            job = {"path": str(path), "sleep": sleep, "die_at": die_at}
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            if kill_after is not None:
                time.sleep(kill_after)
                with contextlib.suppress(ProcessLookupError):  # it was faster
                    os.kill(child, signal.SIGKILL)
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path, whole, server):
    path, moments = tmp_path / "run", random.Random(0)
    with pytest.raises(KeyboardInterrupt):  # the margin takes longer than the kills wait
        evaluate(defended(), Noise(), path, images_per_chunk=2, progress=interrupt_after(0))
    kills = 0
    # The 36 batches take more than two seconds, and a kill loses up to a sixth of that.
    while server(path, sleep=0.06, kill_after=moments.uniform(0.1, 0.8)) == -signal.SIGKILL:
        kills += 1
        if kills == 8:
            break
    assert kills >= 4
    assert server(path) == 0
    assert contents(path) == contents(whole)
    assert not path.with_name("run.lock").exists()
    assert not path.with_name("run.new").exists()


def kill_at(events, tmp_path, whole, server):
    """Kill new processes, each at its own event, until one finishes."""
    path = tmp_path / f"run {events[0]}"
    kills = 0
    for event in events:
        if server(path, die_at=event) == 0:
            break
        kills += 1
    assert server(path) == 0
    assert contents(path) == contents(whole)
    return kills


def test_a_run_killed_before_operations_on_its_files(tmp_path, whole, server):
    generator = random.Random(1)
    events = [generator.randint(1, 60) for _ in range(40)]
    assert kill_at(events, tmp_path, whole, server) >= 15


@pytest.mark.slow
def test_a_run_killed_before_every_single_operation_on_its_files(tmp_path, whole, server):
    for event in range(1, 500):
        if not kill_at([event], tmp_path, whole, server):
            break
    assert 100 < event < 499


def interrupt_after(images):
    """A progress callback that stops the run like Ctrl-C."""

    def report(status):
        if status.stage == "evaluating" and status.images_done >= images:
            raise KeyboardInterrupt

    return report


def test_the_batch_size_is_found_once_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        evaluate(defended(batch_size=None), Noise(), path, progress=interrupt_after(0))
    found = Run.open(path, allow_incomplete=True).attributes["batch_size"]
    assert found >= BatchSize.START
    monkeypatch.setattr(BatchSize, "START", 3)  # another machine would have found something else
    demux = defended(batch_size=None)
    evaluate(demux, Noise(), path)
    assert max(demux.classifier.model.sizes) == found
    assert not {3, 6, 12} & set(demux.classifier.model.sizes)


def test_memory_that_runs_out_later_does_not_change_the_batches(tmp_path, whole):
    path = tmp_path / "run"
    demux = defended()
    large = demux.classifier.model

    def forward(images, forward=large.forward):
        if len(list(path.glob("done/c.*"))) > 1 and len(images) > 5:
            raise torch.OutOfMemoryError("out of memory")
        return forward(images)

    large.forward = forward
    text = r"memory ran out with 10 views per batch.*run this again to resume.*batch_size=5"
    with pytest.raises(RunError, match=text):
        evaluate(demux, Noise(), path, images_per_chunk=2)
    assert 0 < len(Run.open(path, allow_incomplete=True)) < 11
    evaluate(defended(), Noise(), path, images_per_chunk=2)
    assert contents(path) == contents(whole)


# --- refusing ---------------------------------------------------------------------------------


class Other(Company):
    pass


@pytest.mark.parametrize(
    ("field", "demux", "data", "options"),
    [
        ("weights was sha256:.*, but is sha256:", {"seed": 1}, {}, {}),
        (
            r"threat was PatchThreat\(height=2, width=2\), but is PatchThreat\(height=3, width=2\)",
            {"threat": PatchThreat(3, 2)},
            {},
            {},
        ),
        (r"defense was .*\(3, 2\).*, but is .*masks=\(2, 2\)", {"masks": 2}, {}, {}),
        (r"fill was \[0.0\], but is \[0.5\]", {"fill": 0.5}, {}, {}),
        (r"mean was \[0.0\], but is \[0.25\]", {"mean": [0.25]}, {}, {}),
        ("batch_size was 10, but is 5", {"batch_size": 5}, {}, {}),
        ("batch_size was 10, but is 6", {}, {}, {"batch_size": 6}),
        ("images_per_chunk was 2, but is 3", {}, {}, {"images_per_chunk": 3}),
        ("model_id was not set, but is vit-b", {}, {}, {"model_id": "vit-b"}),
        ("images was 11, but is 4", {}, {}, {"limit": 4}),
        ("data: resize was none, but is bicubic", {}, {"resize": "bicubic"}, {}),
        ("targets was sha256:.*pixels was sha256:", {}, {"seed": 1}, {}),
    ],
)
def test_another_fingerprint_is_refused_by_name(whole, field, demux, data, options):
    before = contents(whole)
    with pytest.raises(RunError, match=f"holds a run of something else: {field}") as error:
        evaluate(defended(**demux), Noise(**data), whole, **options)
    several = "limit" in options or "seed" in data
    assert (";" in str(error.value)) == several
    assert contents(whole) == before


def test_the_fingerprint_sees_architecture_precision_and_buffers(tmp_path):
    def fields(model):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        return dict(evaluate(PatchDemux(model, THREAT), Noise(1), path, batch_size=5).fingerprint)

    plain, other = Company(), Other()
    assert [d.split()[0] for d in differences(fields(plain), fields(other))] == [
        "model",
        "architecture",
    ]
    buffered = Company()
    buffered.register_buffer("table", torch.ones(2), persistent=False)
    assert [d.split()[0] for d in differences(fields(plain), fields(buffered))] == ["weights"]
    assert fields(lambda x: x.mean((2, 3)))["weights"] is None
    half = nn.Sequential(Company().bfloat16())
    half.register_forward_pre_hook(lambda module, images: images[0].bfloat16())
    assert fields(half)["precision"] == "bfloat16"


def test_a_defense_that_hides_its_settings_cannot_be_recorded(tmp_path):
    class Hidden(DoubleMasking):
        __repr__ = object.__repr__

    with pytest.raises(RunError, match="the defense Hidden does not tell its settings"):
        evaluate(PatchDemux(Company(), THREAT, Hidden()), Noise(), tmp_path / "run", batch_size=5)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused_and_left_alone(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.txt").write_text("my cat")
    zarr.open_group(tmp_path / "zarr", mode="w-")
    before = contents(tmp_path)
    for use in (lambda path: evaluate(defended(), Noise(), path), Run.open):
        with pytest.raises(RunError, match="photos is no run of patchdemux; nothing there was"):
            use(tmp_path / "photos")
        with pytest.raises(RunError, match="zarr is a Zarr group, but no run of patchdemux"):
            use(tmp_path / "zarr")
        with pytest.raises(RunError, match=r"cat.txt is no run of patchdemux"):
            use(tmp_path / "photos" / "cat.txt")
    assert contents(tmp_path) == before
    with pytest.raises(RunError, match="there is no run at"):
        Run.open(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert evaluate(defended(), Noise(2), tmp_path / "empty").complete


def test_a_second_writer_is_refused_and_the_lock_of_a_dead_one_is_not(tmp_path):
    path = tmp_path / "run"
    with (
        only_writer(path),
        pytest.raises(RunError, match=f"another process .process id {os.getpid()}.; wait for it"),
    ):
        evaluate(defended(), Noise(), path)
    path.with_name("run.lock").write_text("1")
    assert evaluate(defended(), Noise(2), path).complete
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_data_that_does_not_fit_the_classifier(tmp_path):
    def refused(text, data=None, demux=None, **options):
        data = Noise() if data is None else data
        with pytest.raises((RunError, ValueError), match=text):
            evaluate(demux or defended(), data, tmp_path / "run", **options)

    wrong = Noise()
    wrong.names = (*wrong.names[1:], wrong.names[1])
    refused("names of the images are not unique", wrong)
    wrong = Noise()
    wrong.image_size = (9, 9)
    refused(r"ímage 0.png has shape \(3, 8, 7\), but this data set promises", wrong)
    refused(r"images of \(9, 9\), but .* defended for \(8, 7\)", wrong, defended(image_size=SIZE))
    wrong = Noise()
    wrong.class_names = CLASSES[:2]
    refused(r"targets have shape \(11, 3\), but 11 images and 2 class names", wrong)
    wrong.targets = wrong.targets[:, :2]
    refused("the model has 3 classes, but the data set has 2", wrong)
    named = PatchDemux(Classifier(Company(), class_names=("ant", "cat", "bee")), THREAT)
    refused("differ, first at place 1", demux=named)
    refused("the data set has no images", Noise(0))
    refused("limit must be at least 1", limit=0)
    refused("batch_size must be at least 1", batch_size=0)
    refused("on_error must be one of", on_error="ignore")
    assert list(tmp_path.iterdir()) == []


def test_scores_that_are_not_finite_name_the_place(tmp_path):
    data = Noise()
    data.pixels[5] = float("nan")
    demux = PatchDemux(Company(), THREAT, DoubleMasking(2), batch_size=10)
    with pytest.raises(RunError, match=r"\(image 0 is ímage 4.png\)"):
        evaluate(demux, data, tmp_path / "run", images_per_chunk=2)
    assert len(Run.open(tmp_path / "run", allow_incomplete=True)) == 4


# --- trouble ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["set", "fsync"])
@pytest.mark.parametrize("after", [0, 7, 20, 21, 22])
def test_a_full_disk_ends_with_one_sentence_and_a_run_that_resumes(
    tmp_path, whole, monkeypatch, call, after
):
    path, calls = tmp_path / "run", 0

    def full():
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real_set, real_fsync = zarr.storage.LocalStore.set, os.fsync

    async def store(*arguments, **options):
        full()
        return await real_set(*arguments, **options)

    def fsync(file):
        full()
        return real_fsync(file)

    with monkeypatch.context() as patch:
        if call == "set":
            patch.setattr(zarr.storage.LocalStore, "set", store)
        else:
            patch.setattr(os, "fsync", fsync)
        text = (
            r"cannot write \S*run: No space left on device; \d+ of 11 images are safe, and the "
            r"same command resumes there once this is solved"
        )
        with pytest.raises(RunError, match=f"^{text}$"):
            evaluate(defended(), Noise(), path, images_per_chunk=2)
    evaluate(defended(), Noise(), path, images_per_chunk=2)
    assert contents(path) == contents(whole)


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write a run to .*; give a folder that can be"):
        evaluate(defended(), Noise(), tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o500)
    with pytest.raises(RunError, match=r"cannot write a run to .*: Permission denied"):
        evaluate(defended(), Noise(), tmp_path / "mine" / "run")


def test_an_unreadable_image_stops_before_the_first_score(tmp_path):
    demux = defended()
    with pytest.raises(ImageError, match=r"ímage 9.png: the file is truncated"):
        evaluate(demux, Noise(broken=[9]), tmp_path / "run")
    assert demux.classifier.model.sizes == []
    assert list(tmp_path.iterdir()) == []


def test_skipped_images_are_counted_and_recorded(tmp_path):
    data = Noise(broken=[0, 3])
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        evaluate(defended(), data, path, on_error="skip", progress=interrupt_after(1))
    run = evaluate(defended(), data, path, on_error="skip")
    reason = "the file is truncated"
    assert run.left_out == tuple(
        {"name": name, "reason": f"{name}: {reason}"} for name in ("ímage 0.png", "ímage 3.png")
    )
    assert run.names == tuple(data.names[i] for i in range(11) if i not in (0, 3))
    np.testing.assert_array_equal(run.targets, np.delete(data.targets, [0, 3], axis=0))
    truth = defended().bounds(data.pixels[[1, 2, *range(4, 11)]])
    np.testing.assert_array_equal(run.bounds(margin=0).lower, truth.lower)
    with pytest.raises(RunError, match=r"none of 2 images can be read; the first: ímage 0"):
        evaluate(defended(), Noise(2, broken=[0, 1]), tmp_path / "none", on_error="skip")


# --- reading and planning ---------------------------------------------------------------------


def test_an_incomplete_run_is_refused_unless_asked_for(tmp_path, whole):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        evaluate(defended(), Noise(), path, images_per_chunk=2, progress=interrupt_after(4))
    text = "incomplete: 7 of 11 images are missing; start the command that wrote it again and it"
    with pytest.raises(RunError, match=text):
        Run.open(path)
    part, all_of_it = Run.open(path, allow_incomplete=True), Run.open(whole)
    assert not part.complete
    assert part.names == all_of_it.names[:4]
    assert part.attributes["finished"] is None
    np.testing.assert_array_equal(part.bounds().upper, all_of_it.bounds().upper[:4])
    np.testing.assert_array_equal(part.targets, all_of_it.targets[:4])
    assert "4 of 11 images" in repr(part)


def test_a_damaged_run_and_a_newer_one(tmp_path):
    path = tmp_path / "run"
    run = evaluate(defended(), Noise(4), path, images_per_chunk=2)
    (path / "lower" / "c.1.0.0").unlink()
    with pytest.raises(RunError, match=r"run at .* cannot be read: lower must be finite"):
        run.bounds()
    zarr.open_group(path, mode="r+").attrs["patchdemux_run"] = 2
    with pytest.raises(RunError, match=r"has run format 2, but this version .* up to 1; update it"):
        Run.open(path)


def test_progress_has_all_that_a_progress_bar_needs(tmp_path):
    seen: list[Status] = []
    path = tmp_path / "run"
    evaluate(defended(), Noise(), path, images_per_chunk=4, progress=seen.append)
    checks = [status for status in seen if status.stage == "checking images"]
    assert [status.images_done for status in checks] == list(range(1, 12))
    work = seen[len(checks) :]
    assert {status.images for status in work} == {11}
    assert {status.views for status in work} == {11 * VIEWS}
    views = [status.views_done for status in work]
    assert views == sorted(views)
    assert len(set(views)) == 1 + 2 * 10 + 8  # batches of 10: 4 + 84 views, twice, and 3 + 63
    assert [status.images_done for status in work][-1] == 11
    assert work[0].seconds_left is None
    middle = work[len(work) // 2]
    assert middle.views_per_second > 0
    assert middle.images_per_second == pytest.approx(middle.views_per_second / VIEWS)
    assert middle.seconds_left > 0
    assert work[-1].seconds_left == 0


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_plan(tmp_path, batch_size):
    data = Noise(400)
    facts = plan(defended(sleep=0.002, batch_size=batch_size), data)
    assert (facts.images, facts.views_per_image, facts.views) == (400, VIEWS, 400 * VIEWS)
    assert (facts.regions, facts.classes) == (6, 3)
    if batch_size:
        assert facts.batch_size == batch_size
        assert 0.002 * 400 * VIEWS / 10 <= facts.seconds <= 0.02 * 400 * VIEWS / 10
    path = tmp_path / "run"
    evaluate(defended(), Noise(40), path, limit=20, batch_size=100)
    scores = [file for name in (*SCORES, "done") for file in (path / name).glob("c.*")]
    stored = sum(file.stat().st_size for file in scores)
    assert stored <= plan(defended(), Noise(40), limit=20).disk_bytes


def test_a_slow_model_is_not_timed_for_long(monkeypatch):
    monkeypatch.setattr("patchdemux.runs.measure.LONGEST", 0.05)
    demux = defended(sleep=0.02, batch_size=None)
    facts = plan(demux, Noise(400))
    assert sum(demux.classifier.model.sizes) < 200
    assert facts.batch_size in (8, 16, 32)
    assert facts.seconds >= 400 * VIEWS * 0.02 / facts.batch_size


def test_without_zarr_the_package_works_and_runs_say_what_to_install():
    code = (
        "import sys; sys.modules['zarr'] = None\n"
        "import patchdemux\n"
        "try: import patchdemux.runs\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "runs need zarr: pip install 'patchdemux[runs]'"
