"""An attempt to falsify a run: its regions, its arrays, its numbers and its certificates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchdemux.attack import Attack
from patchdemux.attack.places import NamedPlace
from patchdemux.audit.attacked import Prober, by_attack, in_region_corners, method_for
from patchdemux.audit.finding import Finding
from patchdemux.audit.recomputed import check_again
from patchdemux.audit.stored import check_arrays, check_coverage, check_curves, uncovered
from patchdemux.audit.target import Sample
from patchdemux.data.base import ImageSet
from patchdemux.demux import PatchDemux
from patchdemux.runs.errors import RunError
from patchdemux.runs.measure import repeatable
from patchdemux.runs.run import Run

SAMPLE = 8
SECONDS, LONG_SECONDS = 60.0, 3600.0
BATCH_SIZES, LONG_BATCH_SIZES = (7, 24), (1, 2, 3, 5, 7, 12, 24, 64)
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
    sizes = LONG_BATCH_SIZES if long else BATCH_SIZES
    margin, random = run.margin, np.random.default_rng(seed)
    say("checking what is stored")
    findings = [*check_coverage(run, demux.defense), *check_arrays(run, demux.defense)]
    tried = [said_of_regions(run), f"{len(run):,} images: every stored score and interval checked"]
    try:
        bounds = run.bounds()
    except RunError as error:  # what is wrong with the arrays is among the findings already
        return Audit(tuple(findings) or (Finding("stored", str(error)),), tuple(tried))
    if run.targets.any():
        findings += check_curves(bounds, run.targets)
        tried.append("curves: they run the right way, and are ordered as what they bound")
    count = len(run) if long else min(sample, len(run))
    chosen = np.sort(random.choice(len(run), count, replace=False))
    part = Sample(run, demux, dataset, bounds, chosen, threshold, folder)
    findings += part.other_labels()
    say(f"computing {count:,} images again, in batches of {', '.join(map(str, sizes))}")
    with repeatable():
        for target, stored in part.with_stored():
            findings += check_again(target, stored, sizes, random)
        tried.append(
            f"{count:,} images computed again in {len(sizes)} sizes of batches and other orders, "
            f"and compared within the margin {margin:.3g}"
        )
        if why := unattackable(run, demux):
            tried.append(why)
        else:
            say(f"attacking for {seconds:g} s")
            found, words = attacked(part, seconds, random)
            findings += found
            tried.append(words)
    return Audit(tuple(dict.fromkeys(findings)), tuple(tried))


def attacked(
    part: Sample, seconds: float, random: np.random.Generator
) -> tuple[list[Finding], str]:
    """Rounds of attacks until the time is up or something broke, and what was tried, in words.

    The first images are always attacked in every way, however short the time is.
    """
    started = time.monotonic()
    method = method_for(part[0].demux, part[0].images)
    patches = labels = 0
    seen: set[str] = set()
    findings: list[Finding] = []
    for number in itertools.count():
        target = part[number % len(part)]
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
    where = "random places"
    if target.boxes is not None:
        where = "the weakest regions and random places, and random ones in corners of the regions"
    return findings, (
        f"{patches:,} patches on {len(seen):,} images with {labels:,} certified labels (threshold "
        f"{part.threshold:g}), in {time.monotonic() - started:.0f} s: made by {method} attack at "
        f"{where}"
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
