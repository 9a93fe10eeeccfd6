"""PyTorch, with the early features of masked views shared: most of them are computed once.

As long as a network is local, hiding a mask changes its features only in a rectangle, the mask's zone.
So the features of a view that hides two masks are those of the view that hides the first one, with the
zone of the second one computed anew, from the pixels that this zone can see. What a mask hides stays
hidden: no feature outside the zone depends on the mask's pixels, which is measured with NaN
(see `receptive_field.measured`), and the zone is computed from pixels of the view itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from patchdemux.classifier import Answers, Classifier, Views
from patchdemux.engine import device_of
from patchdemux.receptive_field import ReceptiveField, measured
from patchdemux.runtimes.base import TOLERANCE, Precision, RuntimeClassifier
from patchdemux.runtimes.pytorch import Eager, TorchSession
from patchdemux.split import split

NAME = "shared:"
"""How the name of such a runtime begins; the name of the last shared layer follows."""

KEPT = 1 << 29
"""Bytes of features that are kept for views to come."""

Map = Float[Tensor, "view row column channel"]


@dataclass(frozen=True, eq=False)
class Zones:
    """What every mask changes on the map of features, and which pixels that is computed from.

    Attributes:
        rows, columns: of pixels, (mask, side of the crop).
        cell_rows, cell_columns: of the features of the crop, on the map.
        changed: (mask, row, column), the features of the crop that the mask can change.
    """

    rows: Int[Tensor, "mask height"]
    columns: Int[Tensor, "mask width"]
    cell_rows: Int[Tensor, "mask row"]
    cell_columns: Int[Tensor, "mask column"]
    changed: Bool[Tensor, "mask row column"]

    @classmethod
    def of(
        cls, seen: ReceptiveField, boxes: Int[np.ndarray, "mask 4"], device: torch.device
    ) -> Zones:
        """For boxes of top, left, bottom and right."""
        rows, cell_rows, in_rows = _crops(
            seen.first_row, seen.stop_row, seen.grid[0], boxes[:, ::2]
        )
        columns, cell_columns, in_columns = _crops(
            seen.first_column, seen.stop_column, seen.grid[1], boxes[:, 1::2]
        )
        changed = in_rows[:, :, None] & in_columns[:, None]
        parts = (rows, columns, cell_rows, cell_columns, changed)
        return cls(*(torch.from_numpy(part).to(device) for part in parts))

    def cut(self, views: Float[Tensor, "view channel height width"], masks: Tensor) -> Tensor:
        """Of every view, the pixels that the zone of its mask is computed from."""
        each = torch.arange(len(views), device=views.device)[:, None, None]
        place = each, self.rows[masks][:, :, None], self.columns[masks][:, None]
        return views.movedim(1, -1)[place].movedim(-1, 1)

    def paste(self, features: Map, places: Tensor, crops: Map, masks: Tensor) -> None:
        """Put the features of crops into the zones of their masks, in these places of a batch."""
        place = (
            places[:, None, None],
            self.cell_rows[masks][:, :, None],
            self.cell_columns[masks][:, None],
        )
        features[place] = torch.where(self.changed[masks][..., None], crops, features[place])


def _crops(
    first: Int[np.ndarray, " pixel"],
    stop: Int[np.ndarray, " pixel"],
    cells: int,
    sides: Int[np.ndarray, "mask 2"],
) -> tuple[
    Int[np.ndarray, "mask pixel"], Int[np.ndarray, "mask cell"], Bool[np.ndarray, "mask cell"]
]:
    """Along one axis: pixels and cells of every mask's crop, and the cells that the mask changes.

    All crops are as long as the longest, and begin where a cell does, so that one convolution serves
    all of them, in the steps in which it goes over whole images.
    """
    length = len(first)
    step, rest = divmod(length, cells)
    if rest:
        raise ValueError(
            f"features are shared between views only where their map divides the image evenly, but "
            f"the layer makes {cells} cells of {length} pixels"
        )
    low, high = first[sides[:, 0]], stop[sides[:, 1] - 1]
    begin = np.searchsorted(stop, low, side="right") // step
    end = -(-np.searchsorted(first, high, side="left") // step)
    size = int((end - begin).max())
    begin = np.minimum(begin, cells - size)
    own = begin[:, None] + np.arange(size)
    inside = (own >= low[:, None]) & (own < high[:, None])
    return step * begin[:, None] + np.arange(step * size), own, inside


class SharedPrefix(Eager):
    """PyTorch, where views of one image share what comes up to a layer.

    Args:
        layer: the last that is shared, by its name in `model.named_modules()`: "layer1" of a ResNet,
            "blocks.1" of an EfficientNet. All before it must be local.
    """

    shares_features = True

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.name = f"{NAME}{layer}"

    def accept(self, classifier: Classifier) -> None:
        if classifier.visible_channel:
            raise ValueError(
                f"the runtime {self.name} takes images only, but this model is also told which pixels "
                f"are visible"
            )
        split(classifier, self.layer)

    def prepare(
        self, classifier: Classifier, shape: tuple[int, ...], precision: Precision
    ) -> SharedSession:
        assert isinstance(classifier, RuntimeClassifier)
        parts, seen = measured(classifier.plain(), self.layer, (shape[1], shape[2]))
        device = device_of(classifier, torch.empty(0))
        front, back = (TorchSession(part, device, precision) for part in (parts.front, parts.back))
        return SharedSession(front, back, seen)

    def of_views(self, classifier: RuntimeClassifier, views: Views, visible: Tensor) -> Answers:
        return Stitcher(classifier, views, visible)


@dataclass(frozen=True, eq=False)
class SharedSession:
    """Both parts of a model, and what the features between them see."""

    front: TorchSession
    back: TorchSession
    seen: ReceptiveField
    known: dict[bytes, Zones] = field(default_factory=dict)

    def __call__(self, images: Tensor) -> Tensor:
        return self.back(self.front(images))

    def map(self, images: Tensor) -> Map:
        """The features that are shared."""
        return self.front(images).movedim(1, -1)

    def zones(self, boxes: Int[np.ndarray, "mask 4"], view: Callable[[int], Tensor]) -> Zones:
        """The zones of masks; they are tried out, once, on a view that hides nothing but the mask.

        Raises:
            ValueError: features cannot be shared, and why.
        """
        key = boxes.tobytes()
        if key in self.known:
            return self.known[key]
        device = view(0).device
        zones = Zones.of(self.seen, boxes, device)
        if zones.changed[0].numel() == self.seen.grid[0] * self.seen.grid[1]:
            raise ValueError(
                "what a mask changes depends on the whole image at this layer, so that views share "
                "nothing: name an earlier layer"
            )
        place = torch.zeros(1, dtype=torch.int64, device=device)
        tolerance = TOLERANCE[self.front.precision]
        for mask in range(len(boxes)):
            whole, index = self.map(view(mask)), place + mask
            stitched = whole.clone()
            zones.paste(stitched, place, self.map(zones.cut(view(mask), index)), index)
            if (stitched - whole).abs().max() > tolerance * whole.abs().max():
                raise ValueError(
                    "the features of a part of an image are not those of the whole image in the same "
                    "place: views of this model cannot share them"
                )
        self.known[key] = zones
        return zones


class Stitcher:
    """Answers to masked views of some images, from features that views share.

    Args:
        classifier: whose runtime is `SharedPrefix`.
        views: makes views.
        visible: 1 where a mask leaves a pixel visible, else 0.
    """

    def __init__(self, classifier: RuntimeClassifier, views: Views, visible: Tensor) -> None:
        self.classifier, self.views = classifier, views
        self.nothing = len(visible)  # one more mask, which hides nothing
        self.visible = torch.cat([visible, torch.ones_like(visible[:1])])
        hidden = (self.visible == 0).cpu().numpy()
        self.hides = np.asarray(hidden.any(axis=(1, 2)))
        self.boxes = np.array([_box(mask) for mask in hidden])
        self.kept: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def __call__(self, owners: Int[np.ndarray, " job"], masks: Tensor) -> Tensor:
        def whole() -> Tensor:
            return self.views(self.visible, owners, masks)

        hidden = masks.cpu().numpy()
        if hidden.shape[1] > 2:  # of several patches
            logits: Tensor = self.classifier(whole())
            return logits
        self._forget()
        first, second = hidden.min(axis=1), hidden.max(axis=1)
        first = np.where(
            self.hides[first], first, np.where(self.hides[second], second, self.nothing)
        )
        second = np.where(self.hides[second], second, first)
        features = self._of_one(owners, first)
        pairs = np.flatnonzero(first != second)
        if len(pairs):
            both = np.stack([first, second], axis=1)[pairs]
            self._hide(features, pairs, owners[pairs], both)
        features = features.movedim(-1, 1)
        if not self.classifier.channels_last:
            features = features.contiguous()
        answer = self.classifier.checked(masks, self._session(owners).back(features))
        return self.classifier.compared(answer, whole)

    def _of_one(self, owners: Int[np.ndarray, " job"], masks: Int[np.ndarray, " job"]) -> Map:
        """Features of images behind one mask each, kept ones or new ones."""
        keys = list(zip(owners.tolist(), masks.tolist(), strict=True))
        missing = [key for key in dict.fromkeys(keys) if key not in self.kept]
        bare = np.array([key for key in missing if key[1] == self.nothing])
        if len(bare):
            behind = torch.from_numpy(bare[:, 1:]).to(self.visible.device)
            views = self.views(self.visible, bare[:, 0], behind)
            self._keep(bare, self._session(owners).map(views))
        masked = np.array([key for key in missing if key[1] != self.nothing])
        if len(masked):
            found = self._of_one(masked[:, 0], np.full(len(masked), self.nothing))
            self._hide(found, np.arange(len(masked)), masked[:, 0], masked[:, 1:])
            self._keep(masked, found)
        for key in keys:
            self.kept.move_to_end(key)
        return torch.stack([self.kept[key] for key in keys])

    def _hide(
        self,
        features: Map,
        places: Int[np.ndarray, " job"],
        owners: Int[np.ndarray, " job"],
        masks: Int[np.ndarray, "job k"],
    ) -> None:
        """Compute anew what the last of the masks changes, in these places of a batch of features."""
        session, index = self._session(owners), torch.from_numpy(masks).to(features.device)
        zones = session.zones(self.boxes, lambda mask: self._view(owners, mask))
        crops = zones.cut(self.views(self.visible, owners, index), index[:, -1])
        where = torch.from_numpy(places).to(features.device)
        zones.paste(features, where, session.map(crops), index[:, -1])

    def _session(self, owners: Int[np.ndarray, " job"]) -> SharedSession:
        session = self.classifier.session(self._view(owners, self.nothing))
        assert isinstance(session, SharedSession)
        return session

    def _view(self, owners: Int[np.ndarray, " job"], mask: int) -> Tensor:
        return self.views(
            self.visible, owners[:1], torch.tensor([[mask]], device=self.visible.device)
        )

    def _keep(self, keys: Int[np.ndarray, "map 2"], features: Map) -> None:
        for (image, mask), own in zip(keys.tolist(), features, strict=True):
            self.kept[image, mask] = own

    def _forget(self) -> None:
        """Make room, by what was not used for the longest time."""
        size = sum(own.nbytes for own in self.kept.values())
        while size > KEPT:
            size -= self.kept.popitem(last=False)[1].nbytes


def _box(hidden: Bool[np.ndarray, "height width"]) -> list[int]:
    """Top, left, bottom and right of what is hidden; of nothing, a corner."""
    rows, columns = (np.flatnonzero(hidden.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return [0, 0, 1, 1]
    return [int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1]
