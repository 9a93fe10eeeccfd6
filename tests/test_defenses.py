"""Every defense is proved here: one row of `ROWS` for each, and every check on every row.

Each check returns what is wrong, as texts. So the last tests can show, with defenses that are wrong
on purpose, that the checks find it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from guide import example
from literal_defenses import (
    CLASSES,
    boxes_that_hold,
    feature_boxes,
    inside,
    literal_feature_masking,
    literal_intervals,
    literal_masking,
    literal_patchguard,
    literal_smoothing,
    literal_strips,
    literal_votes,
    local_boxes,
    sets_that_hold,
)
from patchdemux import (
    Classifier,
    DoubleMasking,
    Engine,
    IntervalBounds,
    MaskSet,
    PatchThreat,
    ScoreBounds,
    Smoothing,
)
from patchdemux.defenses import Defense
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.defenses.local_votes import LocalVotes, RobustMasking
from patchdemux.models import from_binary_models
from tiny import (
    TinyLocalNet,
    TinyNet,
    TinySplitNet,
    every_attack_at_once,
    placements,
    tiny_images,
)

SEEDS = range(3)
THRESHOLDS = (-1.25, 0.0, 0.5, 2.0)


@dataclass(frozen=True)
class Row:
    """What the checks need to know of a defense.

    Attributes:
        defense: made anew for every check.
        threat: small, so that all its attacks can be tried.
        literal: (defense, model, image, threat, threshold) to a list with, per class, the label and
            whether the paper's own procedure certifies it, written without the package.
        model: from a number and classes to a network whose sums are exact, so that scores do not
            depend on the batch; `tolerance` is for those that are not.
        size: of the images, of which every pixel takes two values.
        larger: the threat and a larger one, of which the larger must not certify more; a defense
            for which that is not so has a check of its own.
        holds: (size, threat, place) to the regions that hold a placement, where regions are no boxes.
        binary: whether binary models side by side may stand for the network.
    """

    name: str
    defense: Callable[[], Defense]
    threat: PatchThreat
    literal: Callable[..., list[tuple[bool, bool]]]
    model: Callable[[int, int], torch.nn.Module]
    larger: PatchThreat | None = None
    size: tuple[int, int] = (4, 4)
    fill: Any = 0.0
    channels: int = 1
    tolerance: float = 0.0
    holds: Callable[..., list[int]] | None = None
    binary: bool = True

    def bounds(self, images, seed=0, threat=None, model=None, batch_size=None, progress=None):
        """Bounds of the defense, with a model of its own."""
        classifier = Classifier.of(self.model(seed, CLASSES) if model is None else model)
        engine = Engine(classifier, fill=self.fill, batch_size=batch_size, progress=progress)
        defense, threat = self.defense(), threat or self.threat
        defense.check(classifier, self.size, threat)
        return defense.bounds(engine, images, threat)

    def images(self, seed, count=2):
        return tiny_images(count, self.size, seed + 100, self.channels)


# --- the table -----------------------------------------------------------------------------------


def tiny_net(size):
    return lambda seed, classes: TinyNet(size, classes, seed)


def plain_layers(size):
    """The same network as a sequence of layers."""

    def make(seed, classes):
        tiny = TinyNet(size, classes, seed)
        tiny.first.bias.data -= 0.5
        tiny.last.bias.data -= 0.25
        return nn.Sequential(nn.Flatten(), tiny.first, nn.ReLU(), tiny.last)

    return make


ROWS = [
    Row(
        "double masking",
        lambda: DoubleMasking((2, 2)),
        PatchThreat(1, 2),
        literal_masking,
        tiny_net((4, 4)),
    ),
    Row(
        "double masking around the undefended score",
        lambda: DoubleMasking((3, 2), center="undefended"),
        PatchThreat(2, 1),
        literal_masking,
        tiny_net((4, 4)),
    ),
    Row(
        "double masking, two patches",
        lambda: DoubleMasking((2, 2)),
        PatchThreat(1, 1, count=2),
        literal_masking,
        tiny_net((3, 4)),
        size=(3, 4),
        holds=lambda size, threat, place: sets_that_hold(
            MaskSet.covering(size, threat.single, (2, 2)).boxes, place
        ),
    ),
    Row(
        "the example of the guide",
        lambda: example()(strips=5),
        PatchThreat(2, 1),
        literal_strips,
        tiny_net((3, 6)),
        size=(3, 6),
        larger=PatchThreat(2, 3),
    ),
    Row(
        "double masking, filled with the mean of visible pixels",
        lambda: DoubleMasking((3, 3)),
        PatchThreat(1, 1),
        partial(literal_masking, fill="mean"),
        tiny_net((4, 4)),
        fill="mean",
        tolerance=1e-5,
    ),
    Row(
        "double masking, patches of several shapes",
        lambda: DoubleMasking((2, 2)),
        PatchThreat.rectangles(2, (0.5, 2), image_size=(4, 4)),
        literal_masking,
        tiny_net((4, 4)),
    ),
    Row(
        "local votes",
        lambda: LocalVotes(low=-1, high=2),
        PatchThreat(1, 1),
        literal_votes,
        lambda seed, classes: TinyLocalNet(classes, seed),
        larger=PatchThreat(1, 2),
        holds=lambda size, threat, place: boxes_that_hold(local_boxes(size, threat), place),
        binary=False,
    ),
    Row(
        "robust masking",
        lambda: RobustMasking(low=-1000, high=1000),
        PatchThreat(1, 1),
        literal_patchguard,
        lambda seed, classes: TinyLocalNet(classes, seed),
        size=(5, 5),
        holds=lambda size, threat, place: boxes_that_hold(local_boxes(size, threat), place),
        binary=False,
    ),
    Row(
        "feature masking",
        lambda: FeatureMasking(masks=(3, 2)),
        PatchThreat(1, 2),
        literal_feature_masking,
        lambda seed, classes: TinySplitNet((5, 5), classes, seed),
        size=(5, 5),
        holds=lambda *place: boxes_that_hold(feature_boxes((3, 2), *place[:2]), place[2]),
        binary=False,
    ),
    Row(
        "feature masking around the undefended score",
        lambda: FeatureMasking(masks=(2, 2), center="undefended"),
        PatchThreat(2, 1),
        literal_feature_masking,
        lambda seed, classes: TinySplitNet((5, 4), classes, seed),
        size=(5, 4),
        holds=lambda *place: boxes_that_hold(feature_boxes((2, 2), *place[:2]), place[2]),
        binary=False,
    ),
    Row(
        "feature masking, two patches",
        lambda: FeatureMasking(masks=(1, 3)),
        PatchThreat(1, 1, count=2),
        literal_feature_masking,
        lambda seed, classes: TinySplitNet((2, 5), classes, seed),
        size=(2, 5),
        holds=lambda *place: sets_that_hold(feature_boxes((1, 3), *place[:2]), place[2]),
        binary=False,
    ),
    *(
        Row(
            f"smoothing by {defense.windows}, {defense.votes:.0%} of the votes",
            lambda defense=defense: defense,
            PatchThreat(1, 2),
            literal_smoothing,
            tiny_net((4, 5)),
            larger=PatchThreat(2, 2),
            size=(4, 5),
        )
        for defense in (
            Smoothing("columns", 1, 1),
            Smoothing("rows", 1, 1, votes=0.25),
            Smoothing("blocks", 2, 2),
            Smoothing("blocks", 2, 1, votes=0.4),
        )
    ),
    Row(
        "interval bounds",
        lambda: IntervalBounds(),
        PatchThreat(1, 2),
        literal_intervals,
        plain_layers((4, 4)),
        larger=PatchThreat(2, 2),
        binary=False,  # they are no sequence of layers
    ),
]


# --- the checks ----------------------------------------------------------------------------------


def regions_that_hold(row, threat, place):
    """The numbers of the regions in which all patches of a placement lie."""
    if row.holds is not None:
        return row.holds(row.size, threat, place)
    boxes = row.defense().region_boxes(row.size, threat)
    return [r for r, box in enumerate(boxes) if all(inside(part, box) for part in place)]


def under_attack(row, seed):
    """Every attack on two images: none leaves the bounds of a region that holds its patches."""
    images = row.images(seed)
    bounds = row.bounds(images, seed)
    labels = {t: bounds.defended > t for t in THRESHOLDS}
    certified = {
        t: np.where(labels[t], bounds.lower.min(axis=1) > t, bounds.upper.max(axis=1) <= t)
        for t in THRESHOLDS
    }
    wrong = []
    for i, image in enumerate(images):
        places, starts, attacked = every_attack_at_once(image, row.threat)
        scores = row.bounds(attacked, seed).defended
        for place, own in zip(places, np.split(scores, starts[1:]), strict=True):
            holders = regions_that_hold(row, row.threat, place)
            if not holders:
                wrong.append(f"no region holds {place}")
            low = bounds.lower[i, holders] - row.tolerance
            high = bounds.upper[i, holders] + row.tolerance
            if (own.min(axis=0) < low).any() or (own.max(axis=0) > high).any():
                wrong.append(f"an attack at {place} leaves the bounds")
        for t in THRESHOLDS:
            if ((scores > t) != labels[t][i])[:, certified[t][i]].any():
                wrong.append("a certified label changes")
    return wrong


def clean_score_is_inside(row, seed):
    """The image itself is one of the attacker's images."""
    bounds = row.bounds(row.images(seed), seed)
    own = bounds.defended[:, None]
    return ["outside"] if ((bounds.lower > own) | (bounds.upper < own)).any() else []


def as_the_paper_says(row, seed):
    """Labels and certificates at fixed thresholds are those of the literal procedure."""
    images, model = row.images(seed), row.model(seed, CLASSES)
    bounds = row.bounds(images, model=model)
    wrong = []
    for (i, image), t in product(enumerate(images), THRESHOLDS):
        labels = bounds.defended[i] > t
        safe = np.where(labels, bounds.lower[i].min(axis=0) > t, bounds.upper[i].max(axis=0) <= t)
        found = list(zip(labels.tolist(), safe.tolist(), strict=True))
        expected = row.literal(row.defense(), model.eval(), image, row.threat, t)
        if found != expected:
            wrong.append(f"at {t}: {found}, but literally {expected}")
    return wrong


def larger_patches_certify_no_more(row, seed):
    """With a larger patch, the lowest lower bound is no higher and the highest upper no lower."""
    if row.larger is None:
        return []
    images = row.images(seed)
    small, large = (row.bounds(images, seed, threat) for threat in (row.threat, row.larger))
    wrong = []
    if (large.lower.min(axis=1) > small.lower.min(axis=1) + row.tolerance).any():
        wrong.append("a lower bound rises")
    if (large.upper.max(axis=1) < small.upper.max(axis=1) - row.tolerance).any():
        wrong.append("an upper bound falls")
    return wrong


def batches_do_not_matter(row, seed):
    """Neither the views per call of the model, nor the images in one call of the defense."""
    images = row.images(seed, 3)
    whole = row.bounds(images, seed)
    others = [row.bounds(images, seed, batch_size=size) for size in (1, 3, 1000)]
    alone = [row.bounds(image[None], seed) for image in images]
    wrong = []
    for name in ("defended", "lower", "upper"):
        expected = getattr(whole, name)
        joined = np.concatenate([getattr(bounds, name) for bounds in alone])
        for found in (joined, *(getattr(bounds, name) for bounds in others)):
            if not np.allclose(found, expected, rtol=0, atol=row.tolerance):
                wrong.append(name)
    return wrong


def binary_models_are_classes(row, seed):
    """Defending binary models side by side is defending each of them alone."""
    if not row.binary:
        return []
    members = [row.model(10 * seed + number, 1) for number in range(2)]
    images = row.images(seed)
    together = row.bounds(images, model=from_binary_models(members))
    wrong = []
    for c, member in enumerate(members):
        alone = row.bounds(images, model=member)
        for name in ("defended", "lower", "upper"):
            if not np.allclose(
                getattr(together, name)[..., c], getattr(alone, name)[..., 0], 0, row.tolerance
            ):
                wrong.append(f"{name} of model {c}")
    return wrong


def counts_are_told(row, seed):
    """`views` and `regions`, where a defense tells them, are those that it runs and returns."""
    passes = []

    def count(done, total):
        if done == total:
            passes.append(total)

    bounds = row.bounds(row.images(seed, 1), seed, progress=count)
    defense = row.defense()
    wrong = []
    if (views := defense.views(row.size, row.threat)) not in (None, sum(passes)):
        wrong.append(f"{views} views are told, {sum(passes)} are run")
    if (regions := defense.regions(row.size, row.threat)) not in (None, bounds.lower.shape[1]):
        wrong.append(f"{regions} regions are told, {bounds.lower.shape[1]} are returned")
    return wrong


CHECKS = (
    under_attack,
    clean_score_is_inside,
    as_the_paper_says,
    larger_patches_certify_no_more,
    batches_do_not_matter,
    binary_models_are_classes,
    counts_are_told,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_defense(row, check):
    for seed in SEEDS:
        assert check(row, seed) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_its_certificates_are_worth_checking(row):
    """Some labels are certified and some are not, or the checks would show nothing."""
    certified = []
    for seed in range(8):
        bounds = row.bounds(row.images(seed), seed)
        low, high = bounds.lower.min(axis=1), bounds.upper.max(axis=1)
        certified += [np.where(bounds.defended > t, low > t, high <= t) for t in THRESHOLDS]
    assert 0.02 < np.mean(certified) < 0.98


# --- where a larger patch may certify more ---------------------------------------------------------


@pytest.mark.parametrize("masks", [(2, 2), (3, 2), (3, 3)])
def test_masks_grow_with_the_patch_and_the_larger_ones_serve_both(masks):
    """Double masking is monotone for one set of masks, not from one grid to the next.

    Another patch moves the masks, and a network may like the new places better. What holds: masks
    never get smaller, and those for the larger patch give the smaller one the very same bounds.
    """
    size = (9, 11)
    for height, width in product(range(1, 8), range(1, 10)):
        small = MaskSet.covering(size, PatchThreat(height, width), masks)
        for larger in (PatchThreat(height + 1, width), PatchThreat(height, width + 1)):
            large = MaskSet.covering(size, larger, masks)
            assert (large.boxes[0, 2:] >= small.boxes[0, 2:]).all()
            MaskSet(size, small.threat, large.boxes)  # proved


# --- defenses that are wrong on purpose ------------------------------------------------------------


class Bare(DoubleMasking):
    """Takes a hidden patch for a harmless one: the bounds are the defended score itself."""

    def bounds(self, engine, images, threat):
        bounds = super().bounds(engine, images, threat)
        own = np.repeat(bounds.defended[:, None], bounds.lower.shape[1], axis=1)
        return ScoreBounds(bounds.clean, bounds.defended, own, own)


class Forgetful(DoubleMasking):
    """Against two patches, it proves for one."""

    def bounds(self, engine, images, threat):
        bounds = super().bounds(engine, images, threat.single)
        low, high = bounds.lower.min(axis=1), bounds.upper.max(axis=1)
        shape = (1, self.regions((3, 4), threat), 1)
        return replace(
            bounds, lower=np.tile(low[:, None], shape), upper=np.tile(high[:, None], shape)
        )


class Lavish(DoubleMasking):
    """Its answer depends on what else is in the batch."""

    def bounds(self, engine, images, threat):
        bounds = super().bounds(engine, images, threat)
        return bounds.widened(len(images))


class Frugal(DoubleMasking):
    """It forgets to count the image itself."""

    def views(self, image_size, threat):
        return super().views(image_size, threat) - 1


def of_wrong_class(row, wrong):
    made = row.defense()
    return replace(row, defense=lambda: wrong(made.masks, made.center, made.guard))


@pytest.mark.parametrize(
    ("row", "wrong", "finders"),
    [
        (ROWS[0], Bare, [under_attack, as_the_paper_says]),
        (ROWS[2], Forgetful, [under_attack, as_the_paper_says]),
        (ROWS[0], Lavish, [as_the_paper_says, batches_do_not_matter]),
        (ROWS[0], Frugal, [counts_are_told]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_defense_is_found(row, wrong, finders):
    row = of_wrong_class(row, wrong)
    for check in finders:
        assert any(check(row, seed) for seed in range(8)), check.__name__


def test_a_larger_patch_that_certifies_more_is_found():
    """Of a defense that takes the patch for smaller the larger it is."""

    class Upside(DoubleMasking):
        def bounds(self, engine, images, threat):
            return super().bounds(engine, images, PatchThreat(5 - threat.height, 5 - threat.width))

    row = replace(
        of_wrong_class(ROWS[0], Upside), threat=PatchThreat(1, 1), larger=PatchThreat(4, 4)
    )
    assert any(larger_patches_certify_no_more(row, seed) for seed in range(8))


def test_every_place_of_every_shape_and_patch_is_tried():
    """The enumeration of attacks, counted by hand on an image of 2 x 2 pixels."""
    one = {((top, left, 1, 1),) for top in (0, 1) for left in (0, 1)}
    assert set(placements((2, 2), PatchThreat(1, 1))) == one
    both = set(placements((2, 2), PatchThreat(1, 1, count=2)))
    assert len(both) == 10  # with repetition, in no order
    shapes = PatchThreat.rectangles(2, (0.5, 2), image_size=(2, 2))
    dominoes = {((0, 0, 1, 2),), ((1, 0, 1, 2),), ((0, 0, 2, 1),), ((0, 1, 2, 1),)}
    assert set(placements((2, 2), shapes)) == dominoes
    image = torch.zeros(1, 2, 2)
    places, starts, attacked = every_attack_at_once(image, PatchThreat(1, 1, count=2))
    assert len(places) == 10
    assert len(attacked) == 4 * 2 + 6 * 4
    assert starts[1] - starts[0] in (2, 4)
