"""An attempt to falsify a run: its regions, its arrays, its numbers and its certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from patchdemux.attack import Attack
from patchdemux.attack.places import NamedPlace
from patchdemux.attack.report import steady
from patchdemux.audit.attacked import Prober, Target, by_attack, in_region_corners, method_for
from patchdemux.audit.finding import Finding
from patchdemux.audit.recomputed import Arrays, check_again
from patchdemux.audit.stored import check_arrays, check_coverage, check_curves, uncovered
from patchdemux.bounds import ScoreBounds
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.runs.errors import RunError
from patchdemux.runs.images import read_chunk
from patchdemux.runs.measure import repeatable
from patchdemux.runs.run import Run
from patchdemux.runs.store import SCORES, RunStore

SAMPLE = 8
SECONDS, LONG_SECONDS = 60.0, 3600.0
BATCH_SIZES, LONG_BATCH_SIZES = (7, 24), (1, 2, 3, 5, 7, 12, 24, 64)
AT_ONCE = 8  # images that are computed again, and attacked, at a time
STEPS = 10


@dataclass(frozen=True)
class Audit:
    """What came of an audit.

    Attributes:
        findings: what is broken; none says that these attempts failed to break it, and no more.
        tried: what was done and how much of it, in words.
    """

    findings: tuple[Finding, ...]
    tried: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing broken was found."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        findings = [asdict(finding) for finding in self.findings]
        return {"passed": self.passed, "findings": findings, "tried": list(self.tried)}


def audit(
    run: Run,
    demux: PatchDemux,
    dataset: ImageSet,
    *,
    sample: int = SAMPLE,
    seconds: float | None = None,
    long: bool = False,
    threshold: float = 0.5,
    seed: int = 0,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Try to falsify a run.

    Args:
        run: the run; of an unfinished one, the images that are done.
        demux: the defended classifier, as `PatchDemux.from_run` makes it. With another runtime or
            precision than the run had, the audit tells whether its margin covers the difference.
        dataset: the images, found by their names.
        sample: so many images, drawn at random, are computed again and attacked.
        seconds: time for attacks, after which no further one begins; None: a minute, or an hour.
        long: take all images, and more sizes of batches.
        threshold: a probability; labels that are certified there are attacked.
        seed: of everything that is drawn.
        folder: where patches that break something are kept; None for nowhere.
        say: is told what begins.
    """
    if not len(run):
        raise RunError(f"the run at {run.path} has no finished images yet")
    if sample < 1:
        raise ValueError(f"sample must be at least 1, but got {sample}")
    seconds = (LONG_SECONDS if long else SECONDS) if seconds is None else seconds
    random = np.random.default_rng(seed)
    say("checking what is stored")
    findings = [*check_coverage(run, demux.defense), *check_arrays(run, demux.defense)]
    tried = [said_of_regions(run), f"{len(run):,} images: every stored score and interval checked"]
    try:
        bounds = run.bounds()
    except RunError as error:  # what is wrong with the arrays is among the findings already
        return Audit(tuple(findings) or (Finding("stored", str(error)),), tuple(tried))
    findings += check_curves(bounds, run.targets)
    tried.append("curves: they run the right way, and are ordered as what they bound")

    chosen = np.arange(len(run))
    if not long:
        chosen = np.sort(random.choice(chosen, min(sample, len(run)), replace=False))
    indices = indices_in(dataset, run, chosen)
    for place, index in zip(chosen.tolist(), indices, strict=True):
        if (run.targets[place] != dataset.targets[index].astype(bool)).any():
            findings.append(Finding("stored", "the data set has other labels", run.names[place]))
    sizes = LONG_BATCH_SIZES if long else BATCH_SIZES
    say(f"computing {len(chosen)} images again, in batches of {', '.join(map(str, sizes))}")
    parts = [slice(first, first + AT_ONCE) for first in range(0, len(chosen), AT_ONCE)]
    images = [read_chunk(dataset, indices[part]) for part in parts]
    stored = arrays_of(run)
    with repeatable():
        for part, pixels in zip(parts, images, strict=True):
            own = {name: array[chosen[part]] for name, array in stored.items()}
            names = [run.names[place] for place in chosen[part]]
            findings += check_again(
                demux, pixels, own, run.margin, sizes, names, run.class_names, random
            )
        tried.append(
            f"{len(chosen):,} images computed again in {len(sizes)} sizes of batches and other "
            f"orders, and compared within the margin {run.margin:.3g}"
        )
        if why := unattackable(run, demux):
            return Audit(tuple(findings), (*tried, why))
        say(f"attacking for {seconds:g} s")
        targets = [
            Target(
                steady(demux),
                pixels,
                [run.names[place] for place in chosen[part]],
                run.class_names,
                run.targets[chosen[part]],
                picked(bounds, chosen[part]),
                run.margin,
                threshold,
                folder,
            )
            for part, pixels in zip(parts, images, strict=True)
        ]
        found, words = attacked(targets, seconds, random)
    return Audit((*findings, *found), (*tried, words))


def attacked(
    targets: Sequence[Target], seconds: float, random: np.random.Generator
) -> tuple[list[Finding], str]:
    """Rounds of attacks until the time is up or something broke, and what was tried, in words.

    The first images are always attacked in every way, however short the time is.
    """
    started = time.monotonic()
    method = method_for(targets[0].demux, targets[0].images)
    patches = labels = 0
    seen: set[str] = set()
    findings: list[Finding] = []
    for number in count():
        target = targets[number % len(targets)]
        prober = Prober(target)
        for finding, step in rounds(prober, method, random):
            if finding is not None:
                findings.append(finding)
            patches += step
        fresh = [i for i, name in enumerate(target.names) if name not in seen]
        labels += int(target.safe[fresh].sum())
        seen |= set(target.names)
        if findings or time.monotonic() - started > seconds:
            break
    return findings, (
        f"{patches:,} patches on {len(seen):,} images with {labels:,} certified labels (threshold "
        f"{targets[0].threshold:g}), in {time.monotonic() - started:.0f} s: random ones in corners "
        f"of the regions, and ones made by {method} attack at the weakest regions and at random"
    )


def rounds(
    prober: Prober, method: Any, random: np.random.Generator
) -> Iterator[tuple[Finding | None, int]]:
    """One patch of every kind on every image; findings, and how many patches were tried."""
    images = len(prober.target.images)
    if (random_ones := in_region_corners(prober, random)) is not None:
        yield from ((finding, 0) for finding in prober.judge(*random_ones))
        yield None, images
    places: list[NamedPlace] = ["random"] if random_ones is None else ["weakest", "random"]
    for place in places:
        seed = int(random.integers(2**31))
        how = Attack("errors", method, place, steps=STEPS, seed=seed)
        yield from ((finding, 0) for finding in by_attack(prober, how))
        yield None, images


def said_of_regions(run: Run) -> str:
    """What was proved anew of the regions."""
    if run.boxes is None:
        return "the regions are no boxes: that they cover the threat was not checked"
    return f"{len(run.boxes)} regions: every place of a {run.threat.single} looked up in them"


def unattackable(run: Run, demux: PatchDemux) -> str:
    """Why no attack is fair, in words; nothing if one is."""
    size, threat = tuple(run.attributes["image_size"]), run.threat
    own = demux.defense.region_boxes(size, threat)
    if own is not None and (run.boxes is None or len(own) != len(run.boxes)):
        return "no attacks: the stored regions are not those of the defense"
    whole = (threat.height, threat.width)
    if threat.shapes and (own is None or uncovered(own, size, whole) is not None):
        return f"no attacks: they fill {whole[0]} x {whole[1]} pixels, more than any shape may"
    return ""


def indices_in(dataset: ImageSet, run: Run, chosen: Int[np.ndarray, " image"]) -> list[int]:
    """Where the run's images are in the data set."""
    where = {name: index for index, name in enumerate(dataset.names)}
    names = [run.names[place] for place in chosen]
    if missing := [name for name in names if name not in where]:
        raise RunError(f"the data set has no image {missing[0]!r}, which the run at {run.path} has")
    if tuple(dataset.class_names) != run.class_names:
        raise RunError(f"the data set has other classes than the run at {run.path}")
    return [where[name] for name in names]


def arrays_of(run: Run) -> Arrays:
    """The stored scores and bounds of the images that are done, without any margin."""
    store = RunStore.open(run.path)
    return {name: store.read(name)[run.done] for name in SCORES}


def picked(bounds: ScoreBounds, images: Int[np.ndarray, " some"]) -> ScoreBounds:
    """The bounds of these images."""
    clean = None if bounds.clean is None else bounds.clean[images]
    return ScoreBounds(clean, bounds.defended[images], bounds.lower[images], bounds.upper[images])
