"""Random score tables for property tests: few distinct values, so that ties are common."""

import numpy as np
from hypothesis import strategies as st

GRID = np.array([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0], np.float32)


def symmetric_table(rng, images, masks, classes, distinct=7):
    scores = rng.choice(GRID[:distinct], (images, masks, masks, classes))
    return np.where(
        np.arange(masks)[:, None, None] <= np.arange(masks)[:, None], scores, scores.swapaxes(1, 2)
    )


@st.composite
def tables(draw, max_images=3, max_masks=7, max_classes=4):
    """Scores (image, mask, mask, class) and targets; sizes down to one mask, class and image."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images = draw(st.integers(1, max_images))
    masks = draw(st.integers(1, max_masks))
    classes = draw(st.integers(1, max_classes))
    scores = symmetric_table(rng, images, masks, classes, draw(st.integers(1, len(GRID))))
    if draw(st.booleans()):  # mostly certifiable: pull most scores to their label's side
        keep = rng.random((images, masks, masks, 1)) < 0.15
        keep |= keep.swapaxes(1, 2)
        side = rng.choice([-2.0, 3.0], (images, 1, 1, classes)).astype(np.float32)
        scores = np.where(keep, scores, side)
    return scores, rng.integers(0, 2, (images, classes))


thresholds = st.sampled_from([*GRID.tolist(), -0.75, 0.1, 2.0, -9.0, 9.0])
