"""Every attack on tiny images is tried: no certified label ever changes.

The checker is shown to be able to fail: with a covering that has a hole, it finds the violation.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchdemux import (
    DoubleMasking,
    MaskSet,
    PatchDemux,
    PatchThreat,
    certify,
    exact_worst_case,
    predict,
)
from tiny import TinyNet, every_attack, tiny_images

SIZE = (4, 4)
CLASSES = 3
METHODS = ("class", "location", "location-fn", "location-fp")


def violations(demux, boxes, images, targets, threshold=0.0):
    """Everything that some attack does and the certificate rules out, as text."""
    bounds = demux.bounds(images)
    certificates = {m: certify(bounds, targets, threshold, m) for m in METHODS}
    found = []
    for i, (image, y) in enumerate(zip(images, targets.astype(bool), strict=True)):
        for (top, left), attacked in every_attack(image, demux.threat):
            scores = demux.bounds(attacked).defended
            labels = scores > threshold
            holders = [
                r
                for r, (t, le, h, w) in enumerate(boxes)
                if t <= top and le <= left
                and top + demux.threat.height <= t + h and left + demux.threat.width <= le + w
            ]  # fmt: skip
            for r in holders:
                if (scores < bounds.lower[i, r]).any() or (scores > bounds.upper[i, r]).any():
                    found.append(f"bounds of region {r}")
            fn, fp = (~labels & y).sum(axis=1).max(), (labels & ~y).sum(axis=1).max()
            by_class, located = certificates["class"], certificates["location"]
            if (labels != y)[:, by_class.certified[i]].any():
                found.append("certified label")
            for method in ("class", "location"):
                c = certificates[method]
                if fn > c.fn[i] or fp > c.fp[i]:
                    found.append(f"counts of {method}")
            # The attackers with a preference: none does better at what they prefer, and one that
            # does as well does no better at the rest.
            joint = list(zip((~labels & y).sum(axis=1), (labels & ~y).sum(axis=1), strict=True))
            prefer_fn, prefer_fp = certificates["location-fn"], certificates["location-fp"]
            if max(joint) > (prefer_fn.fn[i], prefer_fn.fp[i]):
                found.append("counts of location-fn")
            if max((b, a) for a, b in joint) > (prefer_fp.fp[i], prefer_fp.fn[i]):
                found.append("counts of location-fp")
            assert located.fn[i] <= by_class.fn[i]
    return found


def setting(seed, threat, masks, **options):
    demux = PatchDemux(TinyNet(SIZE, CLASSES, seed), threat, DoubleMasking(masks, **options))
    images = tiny_images(2, SIZE, seed + 1)
    # Half of the labels as predicted, so that there is something to certify.
    targets = predict(demux.bounds(images), 0.0) ^ (
        np.random.default_rng(seed).random((2, 3)) < 0.2
    )
    boxes = demux.defense.mask_set(SIZE, threat).boxes.tolist()
    return demux, boxes, images, targets.astype(int)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    threat=st.sampled_from([PatchThreat(1, 1), PatchThreat(2, 1), PatchThreat(1, 2)]),
    masks=st.sampled_from([(2, 2), (3, 2), (1, 3), (1, 1)]),
    center=st.sampled_from(["median", "undefended"]),
    guard=st.sampled_from(["both", "recall", "precision"]),
)
def test_no_attack_breaks_a_certificate(seed, threat, masks, center, guard):
    assert violations(*setting(seed, threat, masks, center=center, guard=guard)) == []


def test_the_certificates_under_attack_are_not_empty():
    """Some labels are certified and some are not, or the test above would show nothing."""
    shares = []
    for seed in range(20):
        demux, _, images, targets = setting(seed, PatchThreat(1, 1), (2, 2))
        shares.append(certify(demux.bounds(images), targets, 0.0).certified.mean())
    assert 0.2 < np.mean(shares) < 0.9


class Holed(MaskSet):
    """A mask set whose proof of coverage was left out."""

    def _prove_coverage(self):
        pass


class HoledMasking(DoubleMasking):
    """Double masking with masks that are one row and column too small."""

    def mask_set(self, image_size, threat):
        whole = MaskSet.covering(image_size, threat, self.masks)
        return Holed(whole.image_size, threat, whole.boxes - [0, 0, 1, 1])


def test_the_checker_finds_a_hole_in_the_covering():
    threat, found = PatchThreat(1, 2), []
    for seed in range(20):
        demux, boxes, images, targets = setting(seed, threat, (2, 2))
        demux.defense = HoledMasking((2, 2))
        found += violations(demux, boxes, images, targets)
    assert "certified label" in found
    assert "counts of location" in found


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), metric=st.sampled_from(["precision", "recall", "f1"]))
def test_no_attack_on_a_data_set_beats_the_exact_bound(seed, metric):
    """All pairs of attacks on two images: the pooled metric never falls below the exact bound."""
    threat = PatchThreat(1, 1)
    demux, _, images, targets = setting(seed, threat, (2, 2))
    worst = exact_worst_case(demux.bounds(images), targets, 0.0, metric).value
    outcomes = []
    for image, y in zip(images, targets.astype(bool), strict=True):
        labels = [
            row
            for _, attacked in every_attack(image, threat)
            for row in demux.predict(attacked).numpy()
        ]
        outcomes.append({((r & y).sum(), (r & ~y).sum(), (~r & y).sum()) for r in labels})
    for pair in product(*outcomes):
        tp, fp, fn = np.sum(pair, axis=0)
        part, whole = {
            "precision": (tp, tp + fp),
            "recall": (tp, tp + fn),
            "f1": (2 * tp, 2 * tp + fp + fn),
        }[metric]
        assert (part / whole if whole else 1.0) >= worst - 1e-12


def test_a_patch_that_no_mask_can_hold_is_refused():
    with pytest.raises(ValueError, match="does not fit into an image of 4 x 4"):
        PatchDemux(TinyNet(SIZE, 1, 0), PatchThreat(5, 1)).bounds(tiny_images(1, SIZE, 0))
