"""De-randomized smoothing: its regions, settings and channel. `test_defenses.py` proves its bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from patchdemux import Classifier, PatchDemux, PatchThreat
from patchdemux.defenses.smoothing import Smoothing, vote, votes_needed
from patchdemux.defenses.windows import axis_regions, axis_windows
from patchdemux.engine import Engine
from patchdemux.runtimes import make_runtime
from tiny import tiny_images

SIZE = (4, 5)
THREAT = PatchThreat(1, 1)


@given(
    length=st.integers(2, 24), patch=st.integers(1, 24), width=st.integers(1, 24),
    stride=st.integers(1, 24),
)  # fmt: skip
def test_regions_along_an_axis_hold_every_placement_and_none_is_needless(
    length, patch, width, stride
):
    width, patch = min(width, length), min(patch, length)
    windows = axis_windows(length, width, min(stride, width))
    assert (windows.sum(axis=1) == width).all()
    assert windows.any(axis=0).all()
    regions, reached = axis_regions(windows, patch)
    sets = [windows[:, p : p + patch].any(axis=1) for p in range(length - patch + 1)]
    ends = regions.sum(axis=1)
    for place, own in enumerate(sets):
        holding = (regions[:, 0] <= place) & (place + patch <= ends)
        assert holding.any()
        assert (reached[holding] >= own).all()
    for (start, size), touched in zip(regions.tolist(), reached, strict=True):
        # Some placement inside reaches all that is held against the region.
        inside = range(start, start + size - patch + 1)
        assert any((sets[p] == touched).all() for p in inside)
        others = (regions[:, 0] <= start) & (ends >= start + size)
        assert others.sum() == 1
    distinct = {
        s.tobytes() for s in sets if not any((s < t).any() and (s <= t).all() for t in sets)
    }
    # Apart from both borders there is one region for each set of windows that no other contains.
    assert len(distinct) <= len(regions) <= len(distinct) + 2


def test_dominated_regions_change_nothing():
    """The worst over the regions is the worst over all placements."""
    scores = np.random.default_rng(0).normal(size=(3, 10, 4)).astype(np.float32)
    windows = axis_windows(20, 4, 2)
    needed = votes_needed(10, 0.5)
    every = np.stack([windows[:, p : p + 3].any(axis=1) for p in range(18)])
    few = vote(scores, axis_regions(windows, 3)[1], needed, scores[:, 0])
    all_of_them = vote(scores, every, needed, scores[:, 0])
    np.testing.assert_array_equal(few.lower.min(axis=1), all_of_them.lower.min(axis=1))
    np.testing.assert_array_equal(few.upper.max(axis=1), all_of_them.upper.max(axis=1))
    assert few.lower.shape[1] < all_of_them.lower.shape[1]


def test_settings_in_words():
    assert Smoothing(width=8, stride=4).in_words(64, PatchThreat(6, 6)) == (
        "16 windows, of which a patch of 6 x 6 pixels touches at most 4; a label takes 9 votes"
    )


def test_a_share_of_the_windows_is_meant_as_it_is_written():
    assert votes_needed(100, 0.29) == 30  # 0.29 * 100 is 28.999999999999996 in floating point
    assert [votes_needed(n, 0.5) for n in (1, 4, 5)] == [1, 3, 3]
    assert votes_needed(10, 0.0) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Smoothing("bands"), r"windows must be one of \('columns', 'rows', 'blocks'\)"),
        (lambda: Smoothing(width=4, stride=5), "got stride 5 and width 4"),
        (lambda: Smoothing(votes=1.0), "at least 0 and below 1, but got 1.0"),
        (lambda: refused(Smoothing(width=5, stride=1)), "hide nothing of 5 pixels"),
        (
            lambda: refused(Smoothing("rows", 2, 1), PatchThreat(1, 6)),
            "patch of 1 x 6 pixels does not fit into an image of 4 x 5",
        ),
        (
            lambda: refused(Smoothing(width=2, stride=1), PatchThreat(1, 1, count=2)),
            "Smoothing proves one patch, not a set of 2 patches",
        ),
    ],
)
def test_what_cannot_be_defended_is_refused_before_any_pass(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def refused(defense, threat=THREAT):
    def never(images):
        raise AssertionError("a forward pass")

    PatchDemux(never, threat, defense).bounds(tiny_images(1, SIZE, 0))


class Told(nn.Module):
    """Answers with the means of its channels, the visible one last."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


def test_the_visible_channel_says_what_is_hidden_and_is_not_normalised():
    classifier = Classifier(Told(), mean=[0.5, 0.25], std=[0.25, 0.5], visible_channel=True)
    images = torch.full((1, 2, 4, 4), 0.5)
    engine = Engine(classifier, fill=(1.0, 0.0))
    hidden = np.zeros((2, 4, 4), bool)
    hidden[1, 1:] = True
    scores = engine.masked_scores(images, hidden, np.array([[0], [1]]))[0]
    np.testing.assert_allclose(scores[0], [0, 0.5, 1])
    np.testing.assert_allclose(scores[1], [1.5, -0.25, 0.25])
    bounds = PatchDemux(classifier, THREAT, Smoothing("rows", 2, 1)).bounds(images)
    np.testing.assert_array_equal(bounds.defended[0, 2], 0.5)
    compiled = make_runtime(classifier, "torch", "bfloat16")
    assert compiled.visible_channel
    assert compiled.plain().visible_channel
