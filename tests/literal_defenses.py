"""The defenses of `test_defenses.py` as their papers have them: literally, slowly, at one threshold.

Nothing in here is vectorised, and nothing calls the defenses of the package.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import torch

import reference
from patchdemux import (
    Classifier,
    MaskSet,
    PatchThreat,
)
from patchdemux.defenses.feature_masking import FeatureMasking
from patchdemux.receptive_field import measured
from tiny import (
    TinyLocalNet,
    TinySplitNet,
    placements,
)

CLASSES = 3


def inside(part, box):
    """Whether one rectangle lies inside another; both are (top, left, height, width)."""
    return all(
        b <= p and p + length <= b + room
        for p, b, length, room in zip(part[:2], box[:2], part[2:], box[2:], strict=True)
    )


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
