"""Every defense is proved here: one row of `ROWS` for each, and every check on every row.

Each check returns what is wrong, as texts. So the last tests can show, with defenses that are wrong
on purpose, that the checks find it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference
from guide import example
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
from patchdemux.receptive_field import measured
from tiny import (
    TinyLocalNet,
    TinyNet,
    TinySplitNet,
    every_attack_at_once,
    placements,
    tiny_images,
)

CLASSES = 3
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


# --- literal versions ----------------------------------------------------------------------------


def literal_masking(defense, model, image, threat, threshold, fill=0):
    """Double masking as PatchCleanser is printed, view by view; K patches: sets of K masks."""
    masks = MaskSet.covering(image.shape[-2:], threat.single, defense.masks).dense()
    sets = sorted({tuple(sorted(set(s))) for s in product(range(len(masks)), repeat=threat.count)})

    @cache
    def scores(*hidden):
        view, under = image.clone(), torch.from_numpy(masks[list(hidden)].any(axis=0))
        seen = [float(pixel) for pixel in image[0][~under]]
        view[:, under] = fill if fill != "mean" else sum(seen) / max(len(seen), 1)
        with torch.no_grad():
            return model(view[None])[0].tolist()

    found = []
    for c in range(CLASSES):
        table = [[scores(*sorted({*a, *b}))[c] for b in sets] for a in sets]
        if defense.center == "median":
            label = reference.double_masking(table, threshold)
        else:
            label = int(scores()[c] > threshold)
            for row in table:
                if all(int(score > threshold) != label for score in row):
                    label = 1 - label
                    break
        found.append((bool(label), reference.double_masking_certifies(table, label, threshold)))
    return found


def literal_strips(defense, model, image, threat, threshold):
    """A vote of strips: a majority that no patch, changing all strips it touches, can turn."""
    width = image.shape[-1]
    edges = [strip * width // defense.strips for strip in range(defense.strips + 1)]
    strips = list(pairwise(edges))
    votes = []
    for start, stop in strips:
        view = torch.zeros_like(image)
        view[:, :, start:stop] = image[:, :, start:stop]
        with torch.no_grad():
            votes.append((model(view[None])[0] > threshold).tolist())
    found = []
    for own in zip(*votes, strict=True):
        label = sum(own) > defense.strips // 2  # of an odd number
        safe = True
        for left in range(width - threat.width + 1):
            touched = [a < left + threat.width and left < b for a, b in strips]
            worst = [not label if t else vote for t, vote in zip(touched, own, strict=True)]
            safe &= (sum(worst) > defense.strips // 2) == label
        found.append((label, safe))
    return found


def sets_that_hold(boxes, place):
    """The regions of double masking against two patches: sets of masks, each patch in one."""
    numbers = range(len(boxes))
    regions = [(a,) for a in numbers] + [(a, b) for a in numbers for b in numbers if a < b]
    return [
        number
        for number, region in enumerate(regions)
        if all(any(inside(part, boxes[mask]) for mask in region) for part in place)
    ]


def literal_votes(defense, model, image, threat, threshold):
    """The mean of clamped votes; a patch moves all those whose 2 x 2 pixels it meets."""
    with torch.no_grad():
        votes = model.local(image[None])[0].clamp(defense.low, defense.high).tolist()
    found = []
    for cells in votes:
        number = len(cells) * len(cells[0])
        label = sum(map(sum, cells)) / number > threshold
        safe = True
        for ((top, left, height, width),) in placements(image.shape[-2:], threat):
            for end in (defense.low, defense.high):
                moved = [
                    [
                        end
                        if top - 2 < row < top + height and left - 2 < column < left + width
                        else value
                        for column, value in enumerate(line)
                    ]
                    for row, line in enumerate(cells)
                ]
                safe = safe and (sum(map(sum, moved)) / number > threshold) == label
        found.append((label, safe))
    return found


def literal_patchguard(defense, model, image, threat, threshold):
    """PatchGuard between yes and no; a patch of one pixel changes the windows of 2 x 2 cells."""
    with torch.no_grad():
        votes = model.local(image[None])[0].tolist()
    found = []
    for cells in votes:
        against = [[-value for value in line] for line in cells]
        at = threshold * len(cells) * len(cells[0])
        score = reference.robust_masking(cells, 2, 2) - reference.robust_masking(against, 2, 2)
        label = score > at
        found.append((label, reference.robust_masking_certifies(cells, label, at, 2, 2)))
    return found


def literal_feature_masking(defense, model, image, threat, threshold):
    """Double masking of the features; a patch of h x w pixels changes h + 1 x w + 1 of them at most."""
    with torch.no_grad():
        features = model.front(image[None])[0]
    sides = (min(threat.height + 1, features.shape[1]), min(threat.width + 1, features.shape[2]))
    patch = PatchThreat(*sides, threat.count)
    return literal_masking(defense.of_features, model.back, features, patch, threshold)


def boxes_that_hold(boxes, place):
    """The numbers of the boxes that hold the one patch of a placement."""
    return [r for r, box in enumerate(boxes) if inside(place[0], box)]


@cache
def local_boxes(size, threat):
    """Regions of the defenses on local scores, for the tiny network."""
    _, field = measured(Classifier(TinyLocalNet(1, 0)), "local", size)
    return field.pixels(field.regions(threat), threat).boxes


@cache
def feature_boxes(masks, size, threat):
    """Masks of the features, as the pixels of the patches that they hide."""
    classifier = Classifier(TinySplitNet(size, 1, 0))
    return FeatureMasking(masks=masks).covering(classifier, size, threat).boxes


def literal_smoothing(defense, model, image, threat, threshold):
    """Windows shown pixel by pixel, votes counted, and every placement of the patch on its own."""
    height, width = image.shape[-2:]
    starts = [range(0, length, defense.stride) for length in (height, width)]
    windows = [
        [
            [
                (defense.windows == "columns" or (y - top) % height < defense.width)
                and (defense.windows == "rows" or (x - left) % width < defense.width)
                for x in range(width)
            ]
            for y in range(height)
        ]
        for top in (starts[0] if defense.windows != "columns" else [0])
        for left in (starts[1] if defense.windows != "rows" else [0])
    ]
    with torch.no_grad():
        views = torch.stack([image * torch.tensor(window) for window in windows])
        scores = model(views).T.tolist()
    share = Fraction(str(defense.votes))
    touched = [
        reference.windows_touched(windows, place)
        for (place,) in placements((height, width), threat)
    ]
    found = []
    for votes in scores:
        label = reference.smoothing(votes, share, threshold)
        safe = all(
            reference.smoothing_certifies(votes, some, label, share, threshold) for some in touched
        )
        found.append((bool(label), safe))
    return found


def literal_intervals(defense, model, image, threat, threshold):
    """Interval arithmetic in fractions, number by number, for every placement of the patch."""
    first, last = model[1], model[3]
    layers = [
        (reference.exact(layer.weight), reference.exact(layer.bias)) for layer in (first, last)
    ]

    def ends(top, left, height, width):
        planes = [
            [
                [
                    (Fraction(0), Fraction(1))
                    if top <= y < top + height and left <= x < left + width
                    else (Fraction(pixel), Fraction(pixel))
                    for x, pixel in enumerate(row)
                ]
                for y, row in enumerate(plane)
            ]
            for plane in image.tolist()
        ]
        hidden = reference.interval_layer("linear", layers[0], planes)
        hidden = reference.interval_layer("relu", None, hidden)
        return [plane[0][0] for plane in reference.interval_layer("linear", layers[1], hidden)]

    labels = [low > threshold for low, _ in ends(0, 0, 0, 0)]
    regions = [ends(*place) for (place,) in placements(image.shape[-2:], threat)]
    return [
        (label, all((low > threshold) if label else (high <= threshold) for low, high in of_class))
        for label, of_class in zip(labels, zip(*regions, strict=True), strict=True)
    ]


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


def inside(part, box):
    """Whether one rectangle lies inside another; both are (top, left, height, width)."""
    return all(
        b <= p and p + length <= b + room
        for p, b, length, room in zip(part[:2], box[:2], part[2:], box[2:], strict=True)
    )


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
