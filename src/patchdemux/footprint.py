"""Where a patch on a photo reaches in the model's input, in whole numbers.

Pillow computes the pixel `o` of a side that is resized from `n` to `m` pixels from those pixels `x` of
the photo whose middle lies within a support of the middle of `o`:

    | (x + 1/2) - (o + 1/2) n / m | < support * max(n / m, 1)

The support is 1 for bilinear, 2 for bicubic, 3 for Lanczos and 1/2 for box; it grows with the photo
where that shrinks (antialiasing), for all but "nearest", which takes the pixel below the middle of
`o`. Times 2 m both sides are integers, so the question has an exact answer. Pillow itself computes in
double precision, whose error on sides of up to 2^16 pixels is far below the 1 that two integers differ
by; so it can matter only where both sides are equal. There a bilinear, bicubic or Lanczos weight is
zero up to that error, and Pillow rounds weights to 22 bits; box and nearest may take either pixel, so
for them equality counts as reached.

Rows are resized apart from columns, so that what a rectangle reaches is a rectangle.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from patchdemux.data.base import ImageSet
from patchdemux.data.preprocess import Preprocessing, as_preprocessing
from patchdemux.data.sizes import behind, sizes_in
from patchdemux.threat import PatchThreat, Size, as_size

Spans = Int[np.ndarray, "place 2"]
"""First pixel, and the one after the last, of the intervals that a patch may take on one axis."""

TWICE_SUPPORT = {"nearest": 1, "box": 1, "bilinear": 2, "bicubic": 4, "lanczos": 6}
SAMPLING = {"4:4:4": (1, 1), "4:2:2": (1, 2), "4:2:0": (2, 2)}
"""Rows and columns of pixels that share one chroma sample of a JPEG."""


def resized_spans(spans: Spans, source: int, target: int, filter: str) -> Spans:
    """The pixels of a side that depend on these pixels of it before it was resized by Pillow.

    An interval that no pixel depends on has its end at its beginning or before.

    >>> resized_spans(np.array([[0, 64], [576, 640]]), 640, 448, "bilinear").tolist()
    [[0, 45], [403, 448]]
    """
    if source == target:  # Pillow leaves this side as it is
        return spans
    scaled = target if filter == "nearest" else max(source, target)
    reach = TWICE_SUPPORT[filter] * scaled - (filter not in ("nearest", "box"))
    starts, ends = spans.astype(np.int64).T
    # 2 m times the middle of the first and last pixel, and of the o that they reach at most.
    first = -((source + reach - (2 * starts + 1) * target) // (2 * source))
    last = ((2 * ends - 1) * target + reach - source) // (2 * source)
    return np.stack([first.clip(0, target), (last + 1).clip(0, target)], axis=1)


def recompressed_spans(spans: Spans, length: int, shared: int) -> Spans:
    """The pixels of a side that can change with these when a photo is stored as JPEG.

    A JPEG is made of blocks of 8 x 8 samples, each rounded by itself. A chroma sample stands for
    `shared` pixels; decoders blend it into the next pixel of its neighbors ("fancy upsampling"), so
    that a block reaches one pixel beyond its border.

    >>> recompressed_spans(np.array([[20, 30]]), 640, 2).tolist()
    [[15, 33]]
    """
    block, beyond = 8 * shared, int(shared > 1)
    starts, ends = spans.T
    reached = [starts // block * block - beyond, -(-ends // block) * block + beyond]
    return np.stack(reached, axis=1).clip(0, length)


@dataclass(frozen=True)
class SourcePatch:
    """One rectangle of the photo itself, before it becomes the model's input, with any content.

    Args:
        height, width: in pixels of the photo.
        share: instead of them, the share of the photo's area that a square takes.
        jpeg: the patch was there before the photo was compressed as JPEG with this chroma
            subsampling: "4:4:4", "4:2:2" or "4:2:0". Certificates are about the photo as it is after
            that compression. None: the patch changes pixels of the photo as it was decoded.

    >>> print(SourcePatch(64, 48, jpeg="4:2:0"))
    patch of 64 x 48 pixels of the photo, put there before its JPEG compression (4:2:0)
    """

    height: int | None = None
    width: int | None = None
    share: float | None = None
    jpeg: str | None = None

    def __post_init__(self) -> None:
        sides = (self.height, self.width)
        if (self.share is None) == (sides == (None, None)) or (None in sides) != (sides[0] is None):
            raise ValueError(
                f"a source patch is given by height and width, or by its share of the photo, "
                f"but got height {self.height}, width {self.width}, share {self.share}"
            )
        if self.share is None:
            as_size("a source patch", sides)  # type: ignore[arg-type]
        elif not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, but got {self.share}")
        if self.jpeg not in (None, *SAMPLING):
            raise ValueError(
                f"jpeg must be a chroma subsampling, one of {', '.join(SAMPLING)}, "
                f"but got {self.jpeg!r}"
            )

    def on(self, photo: tuple[int, int]) -> tuple[int, int]:
        """Height and width in pixels on a photo of this height and width."""
        if self.share is not None:
            square = PatchThreat.from_area(self.share, photo)
            return square.height, square.width
        height, width = as_size("a source patch", (self.height, self.width))  # type: ignore[arg-type]
        if height > photo[0] or width > photo[1]:
            raise ValueError(
                f"a patch of {height} x {width} pixels does not fit; give it as a share of the "
                f"photo, or leave such photos out"
            )
        return height, width

    def __str__(self) -> str:
        size = (
            f"{100 * self.share:.4g}% of the photo, as a square"
            if self.share is not None
            else f"{self.height} x {self.width} pixels of the photo"
        )
        when = f", put there before its JPEG compression ({self.jpeg})" if self.jpeg else ""
        return f"patch of {size}{when}"


def reached(
    box: tuple[int, int, int, int],
    photo: tuple[int, int],
    preprocessing: Preprocessing,
    jpeg: str | None = None,
) -> tuple[int, int, int, int]:
    """The rectangle of the input outside of which nothing depends on this one of the photo.

    Args:
        box: top, left, height and width in pixels of a photo, all at least 0.
        photo: height and width of the photo.
        preprocessing: how it becomes the input.
        jpeg: see `SourcePatch`.

    Returns:
        top, left, height and width; height or width is 0 where nothing depends on it.

    >>> reached((100, 300, 64, 64), (480, 640), Preprocessing(448))
    (93, 209, 61, 46)
    """
    corner, sides = box[:2], box[2:]
    spans = [
        input_spans(np.array([[start, start + side]]), axis, photo, preprocessing, jpeg)[0]
        for axis, (start, side) in enumerate(zip(corner, sides, strict=True))
    ]
    (top, bottom), (left, right) = (map(int, span) for span in spans)
    return top, left, max(bottom - top, 0), max(right - left, 0)


def input_spans(
    spans: Spans,
    axis: int,
    photo: tuple[int, int],
    preprocessing: Preprocessing,
    jpeg: str | None,
) -> Spans:
    """The rows (axis 0) or columns (axis 1) of the input that depend on these of the photo."""
    if jpeg is not None:
        if preprocessing.exif_rotation:
            raise ValueError(
                "where the blocks of a JPEG lie is not known after exif_rotation: turn it off, or "
                "go without jpeg"
            )
        spans = recompressed_spans(spans, photo[axis], SAMPLING[jpeg][axis])
    layout = preprocessing.layout(photo)
    target, offset = (layout.height, layout.width)[axis], (layout.top, layout.left)[axis]
    spans = resized_spans(spans, photo[axis], target, preprocessing.filter)
    return (spans + offset).clip(0, preprocessing.image_size[axis])


def input_sides(
    patch: SourcePatch, photo: tuple[int, int], preprocessing: Preprocessing
) -> tuple[int, int]:
    """Height and width of the smallest rectangle that can hold what the patch reaches, anywhere."""
    longest = []
    for axis, side in enumerate(patch.on(photo)):
        starts = np.arange(photo[axis] - side + 1)
        places = np.stack([starts, starts + side], axis=1)
        first, end = input_spans(places, axis, photo, preprocessing, patch.jpeg).T
        longest.append(max(1, int((end - first).max())))
    return longest[0], longest[1]


@dataclass(frozen=True)
class Footprint:
    """A patch on photos, and the patch on the model's input that holds all that it can change.

    Attributes:
        patch: the patch on the photo.
        threat: the patch on the input: for every photo and every place of `patch` on it, some place of
            `threat` holds every pixel of the input that changes.
        preprocessing: how photos become the input.
        sizes: how many different sizes of photos it holds for.
        tallest, widest: the size of photo, height and width, that decides the height and the width.
    """

    patch: SourcePatch
    threat: PatchThreat
    preprocessing: Preprocessing
    sizes: int
    tallest: tuple[int, int]
    widest: tuple[int, int]

    @classmethod
    def of(
        cls,
        patch: SourcePatch,
        photos: Iterable[tuple[int, int]],
        preprocessing: Preprocessing | Size,
    ) -> Footprint:
        """The footprint on photos of these sizes, height and width, all at once.

        Of a mapping from sizes to the names of photos, an error names the photo.

        One threat for all of them means one set of masks, and so regions that mean the same in every
        image of a run. The price is that the photo with the largest footprint decides for the others.

        >>> Footprint.of(SourcePatch(64, 64), [(480, 640)], 448).threat
        PatchThreat(height=61, width=47)
        """
        how = as_preprocessing(preprocessing)
        sizes = list(dict.fromkeys(as_size("the size of a photo", size) for size in photos))
        if not sizes:
            raise ValueError("a footprint needs the size of at least one photo")
        names = photos if isinstance(photos, Mapping) else {}
        sides = {}
        for size in sizes:
            try:
                sides[size] = input_sides(patch, size, how)
            except ValueError as error:
                name = names.get(size, "photo")
                raise ValueError(f"{name} of {size[0]} x {size[1]} pixels: {error}") from error
        tallest = max(sizes, key=lambda size: sides[size][0])
        widest = max(sizes, key=lambda size: sides[size][1])
        threat = PatchThreat(sides[tallest][0], sides[widest][1])
        return cls(patch, threat, how, len(sizes), tallest, widest)

    @classmethod
    def in_set(cls, patch: SourcePatch, dataset: ImageSet, limit: int | None = None) -> Footprint:
        """The footprint on all photos of a data set, or on its first so many."""
        photos, _ = behind(dataset)
        return cls.of(patch, sizes_in(dataset, limit), photos.preprocessing)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Footprint:
        """What `dataclasses.asdict` made of a footprint, read from JSON."""
        return cls(
            SourcePatch(**record["patch"]),
            PatchThreat(**record["threat"]),
            Preprocessing(**record["preprocessing"]),
            operator.index(record["sizes"]),
            as_size("tallest", record["tallest"]),
            as_size("widest", record["widest"]),
        )

    def __str__(self) -> str:
        worst = dict.fromkeys([self.tallest, self.widest])
        photos = " and ".join(f"{height} x {width}" for height, width in worst)
        of = f"the worst of {self.sizes:,} sizes of photos: " if self.sizes > 1 else "photos of "
        return (
            f"{self.patch}: it reaches at most {self.threat.height} x {self.threat.width} pixels of "
            f"the input ({of}{photos}; {self.preprocessing.mode}, {self.preprocessing.filter})"
        )
