"""The paper's algorithms written literally: loops, one threshold, two rounds, a majority.

Independent of the package and slow on purpose; the tests compare the package with it.
`scores[m][n]` is the score of one image and class under the masks m and n together.
"""

import math
from fractions import Fraction


def double_masking(scores, threshold):
    """PatchCleanser's inference (Algorithm 4): two rounds of masking for one binary label."""
    masks = range(len(scores))
    first = [int(scores[m][m] > threshold) for m in masks]
    ones = sum(first)
    majority = 1 if ones > len(first) - ones else 0  # ties to 0
    for m in masks:
        if first[m] != majority:
            second = [int(scores[m][n] > threshold) for n in masks]
            if all(label == first[m] for label in second):
                return first[m]
    return majority


def double_masking_certifies(scores, label, threshold):
    """PatchCleanser's certification (Algorithm 5): every two-mask prediction is the label."""
    for row in scores:
        for score in row:
            if int(score > threshold) != label:
                return False
    return True


def demux_inference(scores, threshold):
    """PatchDEMUX inference (Algorithm 1): the classes as isolated binary tasks."""
    return [double_masking(table, threshold) for table in scores]


def demux_certification(scores, targets, threshold):
    """PatchDEMUX certification (Algorithm 2): kappa and the counts (TP, FP, FN) of one image."""
    kappa = [
        double_masking_certifies(table, y, threshold)
        for table, y in zip(scores, targets, strict=True)
    ]
    pairs = list(zip(kappa, targets, strict=True))
    tp = sum(1 for k, y in pairs if k and y == 1)
    fp = sum(1 for k, y in pairs if not k and y == 0)
    fn = sum(1 for k, y in pairs if not k and y == 1)
    return kappa, (tp, fp, fn)


def location_aware(scores, targets, threshold, attacker="worst"):
    """Location-aware certification (Algorithm 3): lambda per region, counts of one image."""
    regions = range(len(scores[0]))
    robust = [
        [all(int(score > threshold) == y for score in table[r]) for r in regions]
        for table, y in zip(scores, targets, strict=True)
    ]
    misses = [0 for _ in regions]
    alarms = [0 for _ in regions]
    for statuses, y in zip(robust, targets, strict=True):
        for r in regions:
            if not statuses[r]:
                if y == 1:
                    misses[r] += 1
                else:
                    alarms[r] += 1
    fn, fp = max(misses), max(alarms)
    if attacker == "fn":
        fp = max(alarms[r] for r in regions if misses[r] == fn)
    if attacker == "fp":
        fn = max(misses[r] for r in regions if alarms[r] == fp)
    return robust, (sum(targets) - fn, fp, fn)


def greedy_cutout(loss_behind, levels):
    """Greedy Cutout: the box with the highest loss, then the one with the highest loss beside it.

    `levels` are lists of boxes (top, left, height, width), coarse to fine. Of the coarsest all are
    tried, of each finer one those whose middle lies in the worst of the level before.
    `loss_behind(boxes)` is the loss of the image behind these boxes together. Ties go to the first.
    """
    chosen = []
    for _ in range(2):
        tried, worst, highest = levels[0], None, float("-inf")
        for place in range(len(levels)):
            best_of_level, loss_of_level = None, float("-inf")
            for box in tried:
                loss = loss_behind([*chosen, box])
                if loss > loss_of_level:
                    best_of_level, loss_of_level = box, loss
            if loss_of_level > highest:
                worst, highest = best_of_level, loss_of_level
            if place + 1 < len(levels):
                top, left, height, width = best_of_level
                tried = [
                    (t, le, h, w)
                    for t, le, h, w in levels[place + 1]
                    if top <= t + h / 2 < top + height and left <= le + w / 2 < left + width
                ]
        chosen.append(worst)
    return chosen


def asymmetric_loss(logit, target, focus_positive, focus_negative, clip):
    """The asymmetric loss of one label (Ridnik et al. 2021, equations 2, 5 and 7)."""
    p = 1 / (1 + math.exp(-logit))
    if target:
        return -((1 - p) ** focus_positive) * math.log(p)
    p = max(p - clip, 0)
    return -(p**focus_negative) * math.log(1 - p)


def one_cycle(step, steps, highest, warmup):
    """Rate and first momentum in one step: along a cosine up, then along a cosine down."""
    peak, end = warmup * steps - 1, steps - 1
    start, lowest = highest / 25, highest / 25 / 1e4

    def between(first, last, share):
        return last + (first - last) / 2 * (1 + math.cos(math.pi * share))

    if step <= peak:
        return between(start, highest, step / peak), between(0.95, 0.85, step / peak)
    share = (step - peak) / (end - peak)
    return between(highest, lowest, share), between(0.85, 0.95, share)


def window_sum(cells, top, left, height, width):
    """Sum of local evidence inside a window of the map."""
    return sum(
        cells[row][column]
        for row in range(top, top + height)
        for column in range(left, left + width)
    )


def all_windows(cells, height, width):
    """Top and left of every window of this size."""
    return [
        (top, left)
        for top in range(len(cells) - height + 1)
        for left in range(len(cells[0]) - width + 1)
    ]


def without(cells, top, left, height, width):
    """The evidence with a window of it masked."""
    return [
        [
            0 if top <= row < top + height and left <= column < left + width else value
            for column, value in enumerate(line)
        ]
        for row, line in enumerate(cells)
    ]


def robust_masking(cells, height, width):
    """PatchGuard's robust masking of one class: clip, mask the window with most evidence, add up."""
    clipped = [[max(value, 0) for value in line] for line in cells]
    suspicious = max(
        all_windows(clipped, height, width),
        key=lambda place: window_sum(clipped, *place, height, width),
    )
    return sum(map(sum, without(clipped, *suspicious, height, width)))


def robust_masking_bounds(cells, place, height, width):
    """PatchGuard's bounds on the masked sum of one class, with the patch inside one window.

    At least: the attacker leaves no evidence there, and the mask hides other evidence. At most: the
    mask hides at least as much as the attacker's window.
    """
    clipped = [[max(value, 0) for value in line] for line in cells]
    rest = without(clipped, *place, height, width)
    return robust_masking(rest, height, width), sum(map(sum, rest))


def robust_masking_certifies(cells, label, threshold, height, width):
    """PatchGuard's certification of yes against no: the answer holds wherever the patch is.

    `cells` are positive where they speak for yes and negative where they speak for no.
    """
    against = [[-value for value in line] for line in cells]
    for place in all_windows(cells, height, width):
        yes_low, yes_high = robust_masking_bounds(cells, place, height, width)
        no_low, no_high = robust_masking_bounds(against, place, height, width)
        if label == 1 and not yes_low - no_high > threshold:
            return False
        if label == 0 and yes_high - no_low > threshold:
            return False
    return True


def windows_touched(shown, placement):
    """Which windows see a pixel of a patch: `shown[w][y][x]`, and (top, left, height, width)."""
    top, left, height, width = placement
    return [
        any(window[y][x] for y in range(top, top + height) for x in range(left, left + width))
        for window in shown
    ]


def smoothing(scores, share, threshold):
    """De-randomized smoothing of one binary label: more than a share of the windows say so."""
    votes = sum(1 for score in scores if score > threshold)
    return 1 if votes > share * len(scores) else 0


def smoothing_certifies(scores, touched, label, share, threshold):
    """Whether the label stands when an attacker owns the votes of the windows that were touched."""
    votes = sum(1 for score, t in zip(scores, touched, strict=True) if score > threshold and not t)
    if label == 1:
        return votes > share * len(scores)
    return not votes + sum(touched) > share * len(scores)


def exact(numbers):
    """The numbers of an array as fractions, in lists."""
    if hasattr(numbers, "tolist"):
        numbers = numbers.tolist()
    return [exact(part) for part in numbers] if isinstance(numbers, list) else Fraction(numbers)


def sum_between(terms, bias):
    """The least and the greatest sum of weights times numbers that lie in intervals."""
    least = bias + sum(w * pair[0 if w >= 0 else 1] for w, pair in terms)
    greatest = bias + sum(w * pair[1 if w >= 0 else 0] for w, pair in terms)
    return least, greatest


def interval_layer(kind, options, planes):
    """Interval arithmetic for one layer, number by number: `planes[channel][y][x] = (low, high)`."""
    if kind == "relu":
        return [[[(max(a, 0), max(b, 0)) for a, b in row] for row in plane] for plane in planes]
    if kind == "scale":  # per channel
        return [
            [[sum_between([(scale, pair)], shift) for pair in row] for row in plane]
            for plane, scale, shift in zip(planes, *options, strict=True)
        ]
    if kind == "linear":
        flat = [pair for plane in planes for row in plane for pair in row]
        weights, biases = options
        return [
            [[sum_between(list(zip(row, flat, strict=True)), b)]]
            for row, b in zip(weights, biases, strict=True)
        ]
    if kind in ("max", "average"):  # of squares beside each other
        out = []
        for plane in planes:
            squares = [
                [
                    [plane[y + i][x + j] for i in range(options) for j in range(options)]
                    for x in range(0, len(plane[0]) - options + 1, options)
                ]
                for y in range(0, len(plane) - options + 1, options)
            ]
            if kind == "max":
                out.append(
                    [[tuple(map(max, zip(*s, strict=True))) for s in row] for row in squares]
                )
            else:
                out.append(
                    [[tuple(sum(e) / len(s) for e in zip(*s, strict=True)) for s in row]
                     for row in squares]
                )  # fmt: skip
        return out
    weights, biases, stride, padding = options
    size, height, width = len(weights[0][0]), len(planes[0]), len(planes[0][0])
    return [
        [
            [
                sum_between(
                    [
                        (kernel[c][i][j], planes[c][y + i][x + j])
                        for c in range(len(planes))
                        for i in range(size)
                        for j in range(size)
                        if 0 <= y + i < height and 0 <= x + j < width
                    ],
                    bias,
                )
                for x in range(-padding, width + padding - size + 1, stride)
            ]
            for y in range(-padding, height + padding - size + 1, stride)
        ]
        for kernel, bias in zip(weights, biases, strict=True)
    ]
