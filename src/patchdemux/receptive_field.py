"""Which cells of a feature map a pixel can change: measured, not believed."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from patchdemux.classifier import Classifier
from patchdemux.engine import Engine, device_of
from patchdemux.masks import MaskSet
from patchdemux.split import Split, split
from patchdemux.threat import PatchThreat, Size, as_size

SAME = 1e-4
"""Changes of a feature up to this share of the largest one are rounding, which a margin covers."""

PROBES = 8
"""Images per pass while measuring."""


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """What each row and column of pixels can change on a map of cells.

    A pixel of row `i` changes no cell above row `first_row[i]` or from row `stop_row[i]` on; the same
    holds for columns. Both arrays never decrease, so the pixels of rows `top` to `bottom` together
    change rows `first_row[top]` to `stop_row[bottom]` (left out) at most.

    Attributes:
        image_size: height and width of the images, in pixels.
        grid: rows and columns of cells.
    """

    image_size: tuple[int, int]
    grid: tuple[int, int]
    first_row: Int[np.ndarray, " height"]
    stop_row: Int[np.ndarray, " height"]
    first_column: Int[np.ndarray, " width"]
    stop_column: Int[np.ndarray, " width"]

    @classmethod
    def of(
        cls,
        rows: Bool[np.ndarray, "height row column"],
        columns: Bool[np.ndarray, "width row column"],
    ) -> ReceptiveField:
        """From the cells that change with each whole row, and each whole column, of pixels.

        A cell that some pixel changes also changes with the pixel's row, and with its column.
        """
        sides = (*_spans(np.asarray(rows.any(axis=2))), *_spans(np.asarray(columns.any(axis=1))))
        return cls((len(rows), len(columns)), (rows.shape[1], rows.shape[2]), *sides)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of what one cell sees, at most."""
        height, width = (
            max(int(((first <= cell) & (cell < stop)).sum()) for cell in range(cells))
            for cells, first, stop in (
                (self.grid[0], self.first_row, self.stop_row),
                (self.grid[1], self.first_column, self.stop_column),
            )
        )
        return height, width

    def touched(
        self, threat: PatchThreat
    ) -> tuple[Int[np.ndarray, "top 2"], Int[np.ndarray, "left 2"]]:
        """First and last (left out) row of cells that a patch changes, by its top; columns likewise."""
        return (
            np.stack(
                [_until(self.first_row, threat.height), self.stop_row[threat.height - 1 :]], 1
            ),
            np.stack(
                [_until(self.first_column, threat.width), self.stop_column[threat.width - 1 :]], 1
            ),
        )

    def reach(self, threat: PatchThreat) -> tuple[int, int]:
        """Rows and columns of cells that one patch changes, at most; refused if they are all."""
        rows, columns = (
            max(int((spans[:, 1] - spans[:, 0]).max()), 1) for spans in self.touched(threat)
        )
        if (rows, columns) == self.grid:
            raise ValueError(
                f"a {threat} can change all {rows} x {columns} cells of the map, since one cell sees "
                f"up to {self.size[0]} x {self.size[1]} of the {self.image_size[0]} x "
                f"{self.image_size[1]} pixels: nothing can be proved. A layer before the map sees the "
                f"whole image (such as squeeze-and-excitation, attention, or group, layer or instance "
                f"normalisation), or the layers are too many; cut the model earlier, or build it "
                f"with 1 x 1 convolutions"
            )
        return rows, columns

    def pixels(self, cells: Int[np.ndarray, "region 4"], threat: PatchThreat) -> MaskSet:
        """The boxes of pixels in which a patch changes cells inside each box of cells only.

        It is proved of the boxes of pixels that every placement of the patch lies inside one of them.
        """
        tops, lefts = self.touched(threat)
        boxes = []
        for row, column, height, width in cells.tolist():
            top, tall = _inside(tops, row, row + height, threat.height)
            left, wide = _inside(lefts, column, column + width, threat.width)
            boxes.append((top, left, tall, wide))
        return MaskSet(self.image_size, threat, np.array(boxes))

    def regions(self, threat: PatchThreat) -> Int[np.ndarray, "region 4"]:
        """The different boxes of cells that a patch can change: top, left, height and width.

        A box inside another one needs no region of its own: what holds whatever the larger box
        shows holds whatever the smaller one shows.
        """
        tops, lefts = (_largest(spans) for spans in self.touched(threat))
        return np.array(
            [
                (top, left, bottom - top, right - left)
                for top, bottom in tops.tolist()
                for left, right in lefts.tolist()
            ]
        )


_MEASURED: WeakKeyDictionary[Classifier, dict[tuple[str, Size, str], ReceptiveField]] = (
    WeakKeyDictionary()
)
"""By layer, size of the images, and the description of the model, which tells if it was rebuilt."""


def measured(
    classifier: Classifier, layer: str, image_size: Size, claim: int | None = None
) -> tuple[Split, ReceptiveField]:
    """The classifier cut after a layer, and what each cell of that layer's output sees.

    One after the other, every row and every column of pixels is set to NaN (not a number), which any
    sum or maximum that it enters becomes too, whatever the weights. All cells that differ then are
    taken as changed by all pixels of the row. That takes height + width passes through the front, the
    first time. It holds for layers that look at the same places whatever the image shows, as
    convolutions, pooling and normalisation do; not for those that choose where to look, as deformable
    convolutions do.

    Args:
        classifier: what is cut.
        layer: the name of a layer whose output is (image, channel, row, column).
        image_size: height and width of the images.
        claim: pixels that a cell is said to see along each axis; it is refused if it sees more.
    """
    height, width = as_size("image_size", image_size)
    parts = split(classifier, layer)
    known = _MEASURED.setdefault(classifier, {})
    key = (layer, (height, width), str(classifier))
    if key not in known:
        known[key] = _measure(classifier, parts, (height, width))
    field = known[key]
    if claim is not None and max(field.size) > claim:
        raise ValueError(
            f"the receptive field of {layer!r} is said to be {claim} pixels, but a cell of it sees "
            f"{field.size[0]} x {field.size[1]} pixels of an image of {height} x {width}"
        )
    return parts, field


def _measure(classifier: Classifier, parts: Split, size: tuple[int, int]) -> ReceptiveField:
    device = device_of(classifier, torch.empty(0))
    random = torch.Generator().manual_seed(0)
    plain = torch.rand((1, _channels(classifier), *size), generator=random).to(device)
    engine = Engine(classifier, batch_size=PROBES)
    grid: list[tuple[int, int]] = []

    def probe(first: int, last: int) -> Float[np.ndarray, "job cell"]:
        batch = plain.repeat(last - first + 1, 1, 1, 1)
        for image, line in zip(batch[1:], range(first, last), strict=True):
            if line < size[0]:
                image[:, line] = torch.nan
            else:
                image[:, :, line - size[0]] = torch.nan
        cells = _cells(parts, parts.front(batch))
        allowed = SAME * cells[0].abs().max()
        changed = ~((cells[1:] - cells[0]).abs() <= allowed).all(dim=1)
        grid.append((changed.shape[1], changed.shape[2]))
        return changed.flatten(1).float().cpu().numpy()

    def whole(first: int, last: int) -> Float[np.ndarray, "job class"]:
        scores = classifier(plain[first:last].clone())
        again = parts.back(parts.front(plain[first:last].clone()))
        if not torch.allclose(scores, again, rtol=SAME, atol=SAME * float(scores.abs().max())):
            raise ValueError(
                f"the two parts of the model, cut after {parts.layer!r}, do not give its scores: the "
                f"model does something else in every pass"
            )
        return np.asarray(scores.float().cpu().numpy())

    engine.batched(1, whole)
    changed = engine.batched(sum(size), probe).reshape(sum(size), *grid[0]) > 0
    return ReceptiveField.of(changed[: size[0]], changed[size[0] :])


def _cells(parts: Split, features: Tensor) -> Tensor:
    """The output of the layer, if it is a map of finite features."""
    if not isinstance(features, Tensor) or features.ndim != 4:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"the output of {parts.layer!r} must be a map (image, channel, row, column), but is {got}"
        )
    if not features[0].isfinite().all():
        raise ValueError(f"the output of {parts.layer!r} is not finite")
    return features


def _channels(classifier: Classifier) -> int:
    """Channels of the images that the classifier takes."""
    if classifier.mean.numel() > 1:
        return classifier.mean.numel()
    modules = classifier.modules()
    return next((m.in_channels for m in modules if isinstance(m, nn.Conv2d)), 3)


def _spans(
    changed: Bool[np.ndarray, "pixel cell"],
) -> tuple[Int[np.ndarray, " pixel"], Int[np.ndarray, " pixel"]]:
    """First and last (left out) cell that each line of pixels changes, made never to decrease."""
    cells = changed.shape[1]
    first = np.where(changed.any(axis=1), changed.argmax(axis=1), cells)
    stop = np.where(changed.any(axis=1), cells - changed[:, ::-1].argmax(axis=1), 0)
    return np.minimum.accumulate(first[::-1])[::-1].copy(), np.maximum.accumulate(stop)


def _until(first: Int[np.ndarray, " pixel"], patch: int) -> Int[np.ndarray, " position"]:
    """Those of the positions at which a patch fits."""
    return first[: len(first) - patch + 1]


def _inside(
    spans: Int[np.ndarray, "position 2"], first: int, stop: int, patch: int
) -> tuple[int, int]:
    """Start and length of the pixels in which a patch stays within the cells `first` to `stop`."""
    positions = np.flatnonzero((spans[:, 0] >= first) & (spans[:, 1] <= stop))
    if not len(positions):
        return 0, 0
    return int(positions[0]), int(positions[-1] - positions[0]) + patch


def _largest(spans: Int[np.ndarray, "position 2"]) -> Int[np.ndarray, "span 2"]:
    """The different spans that lie inside no other."""
    spans = np.unique(spans, axis=0)
    first, stop = spans.T
    inside = (first[:, None] >= first) & (stop[:, None] <= stop)
    return np.asarray(spans[inside.sum(axis=1) == 1])
