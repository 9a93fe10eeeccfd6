"""Attacks on what a run certifies, judged by the really defended, really attacked image."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from patchdemux.attack import Attack, attack, save_patch
from patchdemux.attack.attack import Method, size_of
from patchdemux.attack.check import Violation, holders, violations
from patchdemux.attack.pictures import flat
from patchdemux.attack.places import paste
from patchdemux.attack.search import drawn
from patchdemux.attack.victims import BATCH, Undefended, Watching
from patchdemux.audit.finding import Finding, places_of
from patchdemux.audit.target import Target, apart
from patchdemux.bounds import ScoreBounds
from patchdemux.certify import exceeds
from patchdemux.data.files import sha256
from patchdemux.defenses import DoubleMasking
from patchdemux.demux import PatchDemux
from patchdemux.inputs import logit

Seen = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Masks, views and scores (image, view, class), as the defense asked for them."""


def watched(demux: PatchDemux, images: Tensor) -> tuple[ScoreBounds, Seen]:
    """Bounds of the images, and all views that they are made of."""
    engine = Watching(demux.classifier, fill=demux.engine.fill, batch_size=BATCH)
    return demux.defense.bounds(engine, images, demux.threat), engine.seen


class Prober:
    """Judges patches on the images of a target; the clean images are run once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.clean, self.seen = watched(target.demux, target.images)

    def judge(self, places: Int[np.ndarray, "image 2"], patches: Tensor) -> Iterator[Finding]:
        """Put a patch on each image, and check all that must then hold."""
        target = self.target
        attacked = paste(target.images, places, patches)
        try:
            bounds, seen = watched(target.demux, attacked)
        except ValueError:
            yield from self._contradictions(places, patches, attacked)
            return
        found = [
            *self._leaks(seen, places),
            *self._regions(bounds, places),
            *self._scores(bounds, places),
        ]
        for image, finding in found:
            yield self._kept(finding, image, places, patches, attacked)

    def _contradictions(
        self, places: Int[np.ndarray, "image 2"], patches: Tensor, attacked: Tensor
    ) -> Iterator[Finding]:
        """The attacked images on which the defense itself says that it cannot be right."""
        for image in range(len(attacked)):
            try:
                watched(self.target.demux, attacked[image : image + 1])
            except ValueError as error:
                what = f"the defense fails on an attacked image: {error}"
                finding = Finding("contradiction", what, self.target.names[image])
                yield self._kept(finding, image, places, patches, attacked)

    def _scores(self, bounds: ScoreBounds, places: np.ndarray) -> Iterator[tuple[int, Finding]]:
        """The defended score stays within the bounds, there and back.

        Back: the clean image differs from the attacked one by a patch too, so what is proved of the
        attacked image holds for the clean one.
        """
        target = self.target
        arguments = places, target.boxes, target.demux.threat
        for violation in violations(target.stored, bounds.defended, *arguments):
            yield violation.image, self.broken(violation)
        back = bounds.widened(target.margin)
        for violation in violations(back, self.clean.defended, *arguments):
            yield violation.image, self.broken(violation, "of the clean image, by the attacked one")

    def broken(self, violation: Violation, which: str = "of the attacked image") -> Finding:
        """A score beyond its bounds, in words."""
        target, image, label = self.target, violation.image, violation.label
        threshold = logit(target.threshold)
        score = np.array(violation.score, np.float32)
        turned = bool(exceeds(score, threshold)) != bool(target.targets[image, label])
        held = ", ".join(map(str, violation.regions)) or "none: no region holds it"
        what = (
            f"the defended score {which} is {violation.score:.6g}, but was proved to be within "
            f"[{violation.lower:.6g}, {violation.upper:.6g}], for a patch at row {violation.row}, "
            f"column {violation.column} (regions {held})"
        )
        if turned and target.safe[image, label]:
            what += f"; the certified label turned at threshold {target.threshold:g}"
        region = violation.regions[0] if violation.regions else None
        return Finding("attack", what, target.names[image], target.class_names[label], region)

    def _regions(self, bounds: ScoreBounds, places: np.ndarray) -> Iterator[tuple[int, Finding]]:
        """Double masking hides a region in all views that its bounds are made of."""
        target, threat = self.target, self.target.demux.threat
        if not isinstance(target.demux.defense, DoubleMasking) or target.boxes is None:
            return
        for image, place in enumerate(places):
            held = np.flatnonzero(holders(target.boxes, place, threat))
            for name in ("lower", "upper"):
                before = getattr(self.clean, name)[image, held]
                after = getattr(bounds, name)[image, held]
                for at, label in places_of(apart(before, after) > target.margin):
                    what = (
                        f"the {name} bound went from {before[at, label]:.6g} to "
                        f"{after[at, label]:.6g}, but nothing changed outside of the region"
                    )
                    names = target.names[image], target.class_names[label]
                    yield image, Finding("region", what, *names, region=int(held[at]))

    def _leaks(self, seen: Seen, places: np.ndarray) -> Iterator[tuple[int, Finding]]:
        """What is hidden does not change the score of a view."""
        target, threat = self.target, self.target.demux.threat
        for (hidden, views, before), (_, _, after) in zip(self.seen, seen, strict=False):
            # Not of a defense that chooses its views by the image, or that hides features.
            if before.shape != after.shape or hidden.shape[1:] != size_of(target.images):
                continue
            for image, (top, left) in enumerate(places):
                under = hidden[:, top : top + threat.height, left : left + threat.width]
                covered = np.flatnonzero(np.any(under[views], axis=1).all(axis=(1, 2)))
                change = apart(before[image, covered], after[image, covered])
                for view, label in places_of(change > target.margin):
                    masks = sorted(set(views[covered[view]].tolist()))
                    what = (
                        f"the score under masks {masks}, which hide the patch at row {top}, column "
                        f"{left}, changed by {change[view, label]:.3g}, more than the margin "
                        f"{target.margin:.3g}: what is hidden shows through"
                    )
                    names = target.names[image], target.class_names[label]
                    yield image, Finding("leak", what, *names, region=masks[0])

    def _kept(
        self,
        finding: Finding,
        image: int,
        places: np.ndarray,
        patches: Tensor,
        attacked: Tensor,
    ) -> Finding:
        """The finding, with its patch and picture in the folder."""
        return keep(self.target, finding, image, tuple(places[image]), patches[image], attacked)


def keep(
    target: Target,
    finding: Finding,
    image: int,
    place: tuple[int, ...],
    patch: Tensor,
    attacked: Tensor,
) -> Finding:
    """Save a patch and the image with it; once for all findings of the same patch."""
    if target.folder is None:
        return finding
    target.folder.mkdir(parents=True, exist_ok=True)
    content = sha256(patch.cpu().numpy().tobytes())[-8:]
    stem = f"{flat(target.names[image])}-row{place[0]}-column{place[1]}-{content}"
    files = [target.folder / f"{stem}-{what}.png" for what in ("patch", "picture")]
    for file, pixels in zip(files, (patch, attacked[image]), strict=True):
        if not file.exists():
            save_patch(file, pixels)
    return finding.kept_in(*map(str, files))


def method_for(demux: PatchDemux, images: Tensor) -> Method:
    """By gradient, where the model has one."""
    size = images.shape[-2:]
    try:
        Undefended(demux).engine.gradient(
            images[:1], np.zeros((1, *size), bool), np.zeros((1, 2), int), lambda scores, _: scores
        )
    except ValueError:
        return "square"
    return "gradient"


def corners(
    boxes: Int[np.ndarray, "region 4"],
    shape: tuple[int, int],
    count: int,
    random: np.random.Generator,
) -> Int[np.ndarray, "image 2"]:
    """Random corners of random regions: there a mask that is a pixel too small leaves its hole."""
    chosen = boxes[random.integers(0, len(boxes), count)]
    spare = np.maximum(chosen[:, 2:] - shape, 0)
    return np.asarray(chosen[:, :2] + spare * random.integers(0, 2, (count, 2)))


def in_region_corners(
    prober: Prober, random: np.random.Generator
) -> tuple[Int[np.ndarray, "image 2"], Float[Tensor, "image channel height width"]] | None:
    """A patch of random content for each image; None where the regions are no boxes."""
    target, threat = prober.target, prober.target.demux.threat
    boxes, count = target.boxes, len(target.images)
    if boxes is None:
        return None
    places = corners(boxes, (threat.height, threat.width), count, random)
    empty = torch.empty((count, target.images.shape[1], threat.height, threat.width))
    return places, drawn(empty, random).to(target.images)


def by_attack(prober: Prober, how: Attack) -> Iterator[Finding]:
    """Attack the certified labels, and check all that must hold of what comes of it."""
    target = prober.target
    safe = target.safe
    labels = safe | ~safe.any(axis=1, keepdims=True)  # where none is certified, bounds still hold
    images = target.images
    try:
        found = attack(
            target.demux,
            images,
            target.targets,
            how,
            threshold=target.threshold,
            bounds=target.stored,
            labels=labels,
        )
    except ValueError as error:
        yield Finding("contradiction", f"the defense fails on an attacked image: {error}")
        return
    for violation, patch in zip(found.violations, found.broken, strict=True):
        image, place = violation.image, (violation.row, violation.column)
        attacked = paste(
            images, np.tile(place, (len(images), 1)), patch.expand(len(images), -1, -1, -1)
        )
        yield keep(target, prober.broken(violation), image, place, patch, attacked)
    yield from prober.judge(found.places, found.patches)
