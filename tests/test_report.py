"""Tables, heat maps and the page: what they show is what was computed."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread

from patchdemux import MaskSet, PatchThreat, ScoreBounds, certified
from patchdemux.report.heatmaps import as_data_uri, danger_map, place_map, probability
from patchdemux.report.page import gallery, render_page
from patchdemux.report.plots import plot_curves
from patchdemux.report.summary import HEADINGS, NAMES, summarize
from test_metrics import realistic

VOID = {"meta", "img", "br", "path", "use", "link"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed without being open."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(threshold=0.5):
    torch = pytest.importorskip("torch")
    size = (18, 18)
    masks = MaskSet.covering(size, PatchThreat(4, 4), (3, 3))
    bounds, targets = realistic(images=6, masks=len(masks), classes=4)
    rows = summarize(bounds, targets)
    images = torch.rand(6, 3, *size)
    names = [f"image <{i}>" for i in range(6)]
    shown = gallery(images, names, bounds, targets.astype(bool), "abcd", masks, threshold)
    html = render_page("A <title>", "Some words.", masks, rows, shown, threshold, {"a": "b"})
    return html, rows, bounds, targets, shown


def test_the_page_is_whole_safe_and_self_contained():
    html, rows, *_ = page()
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "A &lt;title&gt;" in html
    assert "image <" not in html
    references = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^")\s]+)', html)
    assert references
    assert all(r.startswith(("data:", "#")) for r in references)  # nothing is fetched
    text = " ".join(parser.text)
    for row in rows:
        assert NAMES[row.setting] in text
        for figure in row.figures:
            assert f"{100 * figure:.1f}" in text
    for heading in HEADINGS:
        assert heading in text


def test_the_gallery_shows_true_labels_and_those_that_can_be_faked():
    _, _, bounds, targets, shown = page()
    safe = certified(bounds, targets, 0.0)
    for i, image in enumerate(shown):
        expected = {"abcd"[c] for c in range(4) if targets[i, c] or not safe[i, c]}
        assert {label.name for label in image.labels} == expected
        for label in image.labels:
            c = "abcd".index(label.name)
            assert label.certified == safe[i, c]
            assert label.places == 0 or not safe[i, c]


def test_a_map_of_places_takes_the_best_bound_of_the_masks_that_hold_the_patch():
    threat, size = PatchThreat(2, 3), (7, 9)
    masks = MaskSet.covering(size, threat, (2, 3))
    values = np.random.default_rng(0).normal(size=len(masks))
    for combine, best in ((np.maximum, max), (np.minimum, min)):
        drawn = place_map(values, masks, combine)
        assert drawn.shape == size
        for top in range(size[0] - 2 + 1):
            for left in range(size[1] - 3 + 1):
                holders = [
                    value
                    for value, (t, le, h, w) in zip(values, masks.boxes, strict=True)
                    if t <= top and le <= left and top + 2 <= t + h and left + 3 <= le + w
                ]
                assert drawn[top, left + 1] == best(holders)  # the patch's middle


def test_danger_is_colored_exactly_where_no_guarantee_was_given():
    masks = MaskSet.covering(8, PatchThreat(2, 2), (2, 1))
    lower = np.array([[[-1.0], [1.0]]], np.float32)
    bounds = ScoreBounds(None, np.array([[1.5]], np.float32), lower, lower + 3)
    overlay, places = danger_map(bounds, masks, 0, 0, True, 0.0)
    assert 0 < places < 1
    # The place at row 3 lies inside both masks, so the better of their bounds counts.
    assert (overlay[:3, :, 3] > 0).all()
    assert (overlay[3:, :, 3] == 0).all()
    overlay, places = danger_map(bounds, masks, 0, 0, True, -2.0)
    assert places == 0
    assert (overlay[..., 3] == 0).all()
    assert danger_map(bounds, masks, 0, 0, False, 1.9)[1] == 1


def test_pictures_are_valid_files(tmp_path):
    import base64

    uri = as_data_uri(np.linspace(0, 1, 48).reshape(4, 4, 3))
    path = tmp_path / "x.png"
    path.write_bytes(base64.b64decode(uri.partition(",")[2]))
    assert imread(path).shape[:2] == (4, 4)


def test_the_same_curves_give_the_same_plot_in_the_colors_of_the_page():
    bounds, targets = realistic()
    first, second = (plot_curves(summarize(bounds, targets), "x") for _ in range(2))
    assert first == second
    assert "currentColor" in first
    assert "#010203" not in first


def test_probability_neither_overflows_nor_rounds_to_the_wrong_side():
    logits = np.array([-1e4, -1e-3, 0.0, 1e-3, 1e4], np.float32)
    chances = probability(logits)
    assert chances[0] == 0
    assert chances[-1] == 1
    assert (np.sign(chances - 0.5) == np.sign(logits)).all()
