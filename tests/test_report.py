"""Tables, heat maps and the page: what they show is what was computed."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from patchdemux import MaskSet, PatchThreat, ScoreBounds, certified
from patchdemux.report.classes import means, per_class
from patchdemux.report.gallery import MOST_FAKED, gallery, pick
from patchdemux.report.heatmaps import (
    LARGEST,
    as_data_uri,
    as_picture,
    danger_map,
    place_map,
    probability,
)
from patchdemux.report.page import Classes, Guarantee, Page, Pictured, render_page
from patchdemux.report.plots import plot_curves, plots_of
from patchdemux.report.robustness import extremes, ranking, robustness
from patchdemux.report.summary import HEADINGS, NAMES, curve_table, summarize
from test_metrics import realistic

VOID = {"meta", "img", "br", "path", "use", "link"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed without being open, and on an id that occurs twice."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.ids = [], [], set()

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name in (value for key, value in attrs if key == "id"):
            assert name not in self.ids
            self.ids.add(name)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def words_of(html):
    """The text of a page that is whole, balanced, and fetches nothing."""
    assert html.startswith("<!doctype html>")
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    references = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^")\s]+)', html)
    assert references
    assert all(r.startswith(("data:", "#")) for r in references)
    assert not re.search(r"<script|<link|@import", html)
    return " ".join(" ".join(parser.text).split())


def page(threshold=0.5):
    size = (18, 18)
    masks = MaskSet.covering(size, PatchThreat(4, 4), (3, 3))
    bounds, targets = realistic(images=6, masks=len(masks), classes=4)
    targets = targets.astype(bool)
    rows = summarize(bounds, targets)
    images = list(torch.rand(6, 3, *size))
    names = [f"image <{i}>" for i in range(6)]
    shown = gallery(images, names, bounds, targets, "abcd", masks, threshold)
    by_class = per_class(bounds, targets, ["a", "<b>", "c", "d"])
    html = render_page(
        Page(
            title="A <title>",
            introduction=["Some words."],
            results=curve_table(rows, "caption"),
            plots=plots_of(rows),
            guarantee=Guarantee(masks.threat, size, 6, str(masks), ["But & only here."]),
            classes=Classes(by_class, means(by_class)),
            gallery=[Pictured("", shown)],
            threshold=threshold,
            facts={"": {"a": "b"}},
            left_out=[{"name": "gone.jpg", "reason": "truncated"}],
        )
    )
    return html, rows, bounds, targets, shown


def test_the_page_is_whole_safe_and_self_contained():
    html, rows, *_ = page()
    text = words_of(html)
    assert "A &lt;title&gt;" in html
    assert "image <" not in html
    assert "&lt;b&gt;</td>" in html
    for row in rows:
        assert NAMES[row.setting] in text
        for figure in row.figures:
            assert f"{100 * figure:.1f}" in text
    for words in (*HEADINGS, "But & only here.", "gone.jpg", "truncated", "9 masks (3 x 3)"):
        assert words in text


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
        assert image.true == targets[i].sum()
        assert image.safe == (targets[i] & safe[i]).sum()
        assert image.more == 0


def test_the_gallery_says_how_many_fakeable_labels_it_does_not_draw():
    classes = MOST_FAKED + 5
    bounds = ScoreBounds(
        None, np.zeros((1, classes), "f4"), *(np.full((1, 2, classes), x, "f4") for x in (-1, 1))
    )
    targets = np.zeros((1, classes), bool)
    targets[0, -2:] = True
    names = [str(c) for c in range(classes)]
    (image,) = gallery([None], ["x"], bounds, targets, names, None, 0.5)
    assert [label.name for label in image.labels[:2]] == names[-2:]  # all true labels
    assert len(image.labels) == 2 + MOST_FAKED
    assert image.more == 3
    assert image.picture is None
    assert all(label.overlay is None and label.places == 1 for label in image.labels)


def test_robustness_is_the_share_of_certified_labels_then_the_lowest_bound():
    lower = np.array([[2, 1, -9], [3, -1, 0], [-2, -1, 0], [1, 1, 1], [-9, 3, 0]], "f4")
    targets = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
    high = np.full((5, 2, 3), 9, "f4")
    bounds = ScoreBounds(None, np.full((5, 3), 6, "f4"), np.stack([lower, lower + 1], 1), high)
    share, margin = robustness(bounds, targets, 0.0)
    assert share.tolist() == [1, 0.5, 0, 0, 1]
    assert margin.tolist() == [1, -1, -2, np.inf, 3]
    ranked = ranking(bounds, targets, 0.0)
    assert ranked.tolist() == [2, 1, 0, 4]  # the one without true labels is not ranked
    assert [part.tolist() for part in extremes(ranked, 1)] == [[4], [2]]
    assert [part.tolist() for part in extremes(ranked, 9)] == [[4, 0], [2, 1]]
    assert [part.tolist() for part in extremes(ranked[:1], 3)] == [[], [2]]
    assert pick(bounds, ranked).lower[0, 0].tolist() == lower[2].tolist()


def test_no_class_is_dropped_from_the_table():
    bounds, targets = realistic(images=40, classes=25)
    targets[:, 7] = 0
    names = [f"class {c}" for c in range(25)]
    rows = per_class(bounds, targets, names)
    assert sorted(row.name for row in rows) == sorted(names)
    assert rows[-1].name == "class 7"
    assert (rows[-1].labels, np.isnan(rows[-1].certified)) == (0, True)
    certified_ap = [row.certified for row in rows[:-1]]
    assert certified_ap == sorted(certified_ap, reverse=True)
    table = Classes(rows, means(rows))
    assert [len(column) for column in table.columns] == [13, 12]
    assert table.unseen == ["class 7"]
    assert table.mean.labels == targets.sum()
    assert table.mean.certified == pytest.approx(np.mean(certified_ap))


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


def test_large_pictures_are_reduced_and_any_number_of_channels_is_shown(tmp_path):
    import base64

    for channels, size in ((3, (900, 450)), (1, (900, 450)), (5, (900, 450)), (1, (6, 8))):
        uri = as_picture(torch.full((channels, *size), 0.5))
        path = tmp_path / ("x." + uri[11:].partition(";")[0])
        path.write_bytes(base64.b64decode(uri.partition(",")[2]))
        shape = imread(path).shape[:2]
        assert shape == (size if size == (6, 8) else (LARGEST, LARGEST // 2))


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
