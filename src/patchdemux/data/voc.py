"""PASCAL VOC: photos labelled by the objects that are boxed in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from patchdemux.data.files import FolderFiles, check_file_name, duplicate, read_labels
from patchdemux.data.photos import PhotoSet
from patchdemux.data.preprocess import Preprocessing, as_preprocessing
from patchdemux.threat import Size

CLASS_NAMES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


def voc(
    devkit: str | Path,
    size: Preprocessing | Size,
    *,
    year: int | str,
    split: str,
    difficult: bool = True,
    keep_empty: bool = False,
) -> PhotoSet:
    """PASCAL VOC from the folder VOCdevkit, in the order of the split's list.

    The 20 classes come in alphabetical order.

    Args:
        devkit: the folder VOCdevkit, or the folder that it is in.
        size: the model's input size, or how a photo is brought to it.
        year: of the challenge, such as 2007.
        split: a list in ImageSets/Main, such as "test" or "trainval".
        difficult: count objects that are marked as difficult, as the paper does.
        keep_empty: keep images without any object that counts.
    """
    root = year_folder(Path(devkit), year)
    listing = root / "ImageSets" / "Main" / f"{split}.txt"
    if not listing.is_file():
        raise FileNotFoundError(
            f"{root} has no split {split!r}: there is no file {listing}; "
            f"it has: {', '.join(splits_of(root)) or 'none'}"
        )
    photos = photos_of(listing)
    digest = hashlib.sha256(listing.read_bytes())
    targets = np.zeros((len(photos), len(CLASS_NAMES)), bool)
    for row, photo in enumerate(photos):
        path = root / "Annotations" / f"{photo}.xml"
        content = read_labels(path, f"the annotation of image {photo} of split {split!r}")
        digest.update(content)
        for name, is_difficult in objects_of(content, path):
            if difficult or not is_difficult:
                targets[row, CLASS_NAMES.index(name)] = True
    if not (root / "JPEGImages").is_dir():
        raise FileNotFoundError(f"there is no folder {root / 'JPEGImages'} with the photos")
    return PhotoSet(
        FolderFiles(root / "JPEGImages"),
        [f"{photo}.jpg" for photo in photos],
        targets,
        CLASS_NAMES,
        as_preprocessing(size),
        keep_empty=keep_empty,
        about={
            "kind": "voc",
            "labels": f"VOC{year} {split}",
            "labels_sha256": digest.hexdigest(),
            "difficult": difficult,
        },
    )


def year_folder(devkit: Path, year: int | str) -> Path:
    """The folder of one year's challenge."""
    looked_for = [devkit / f"VOC{year}", devkit / "VOCdevkit" / f"VOC{year}"]
    for folder in looked_for:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"there is no PASCAL VOC {year} in {devkit}: looked for the folders "
        + " and ".join(str(folder) for folder in looked_for)
    )


def splits_of(root: Path) -> list[str]:
    """The splits of all classes that one year has; the lists of single classes left out."""
    names = sorted(path.stem for path in (root / "ImageSets" / "Main").glob("*.txt"))
    return [name for name in names if name.partition("_")[0] not in CLASS_NAMES]


def photos_of(listing: Path) -> list[str]:
    """The photos that a split lists, one per line."""
    photos = [line.strip() for line in listing.read_text(encoding="utf-8").splitlines()]
    photos = [photo for photo in photos if photo]
    for photo in photos:
        if len(photo.split()) > 1:
            raise ValueError(
                f"{listing}: {photo!r} is not the name of one photo; "
                f"a list of one class cannot be used as a split"
            )
        check_file_name(photo, str(listing))
    if (twice := duplicate(photos)) is not None:
        raise ValueError(f"{listing}: image {twice} is listed twice")
    return photos


def objects_of(content: bytes, path: Path) -> list[tuple[str, bool]]:
    """The class of every object of an annotation, and whether it is marked as difficult."""
    parser = ElementTree.XMLParser(target=_PlainTree())
    try:
        annotation = ElementTree.fromstring(content, parser)
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is not an XML file, or a damaged one ({error})") from error
    except _DoctypeError:
        raise ValueError(
            f"{path} declares a DOCTYPE, which VOC annotations never do; it is refused, as it may "
            f"make the parser read other files or fill the memory"
        ) from None
    objects = []
    for entry in annotation.findall("object"):
        name = (entry.findtext("name") or "").strip()
        mark = (entry.findtext("difficult") or "0").strip()
        if name not in CLASS_NAMES:
            raise ValueError(f"{path}: {name!r} is not one of the 20 classes of PASCAL VOC")
        if mark not in ("0", "1"):
            raise ValueError(f"{path}: 'difficult' of a {name} must be 0 or 1, but is {mark!r}")
        objects.append((name, mark == "1"))
    return objects


class _DoctypeError(Exception):
    pass


class _PlainTree(ElementTree.TreeBuilder):
    """A tree without a DOCTYPE, and so without entities of its own."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise _DoctypeError
