"""Files by their name, in a folder or in a zip."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from patchdemux.data.decode import read_bytes, unreadable


class PhotoFiles(ABC):
    """Files by their name, below one folder."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The place of a file, for messages."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The file's size in bytes; None if there is no such file."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The file's content, or an `ImageError`."""

    def fingerprint(self, names: Sequence[str]) -> dict[str, str]:
        """What is known of the files' contents without reading them, as plain JSON values."""
        return {}

    def absence(self, name: str) -> str | None:
        """Why this file cannot be read, as far as that is seen without reading it; else None."""
        size = self.size(name)
        if size:
            return None
        reason = "the file is missing" if size is None else "the file is empty"
        return str(unreadable(self.where(name), reason))


class FolderFiles(PhotoFiles):
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def where(self, name: str) -> str:
        return str(self.folder / name)

    def size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes:
        return read_bytes(self.folder / name)


class ZipFiles(PhotoFiles):
    """Files in a zip, read in place; every thread of every process opens the zip for itself.

    Args:
        path: the zip.
        holding: a file that is looked for: names are relative to the folder in the zip that it is in.
    """

    def __init__(self, path: Path, holding: str | None = None) -> None:
        self.path = path
        self.holding = holding
        self.entries: dict[str, zipfile.ZipInfo] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if entry.filename in self.entries:
                        raise ValueError(f"{path} holds two files named {entry.filename}")
                    if not entry.is_dir():
                        self.entries[entry.filename] = entry
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a zip, or a damaged one ({error})") from error
        self.prefix = "" if holding is None else self._prefix_of(holding)
        self._mine = threading.local()

    def __reduce__(self) -> tuple[type[ZipFiles], tuple[Path, str | None]]:
        return ZipFiles, (self.path, self.holding)

    def _prefix_of(self, name: str) -> str:
        """The folder in the zip that holds a file of this name; the least deep one."""
        found = [
            entry.removesuffix(name)
            for entry in self.entries
            if (entry == name or entry.endswith("/" + name)) and not entry.startswith("__MACOSX/")
        ]
        depth = min((prefix.count("/") for prefix in found), default=0)
        nearest = [prefix for prefix in found if prefix.count("/") == depth]
        if len(nearest) > 1:
            raise ValueError(
                f"{self.path} holds {name} in several folders, and it is not clear which is meant: "
                + ", ".join(sorted(nearest))
            )
        return nearest[0] if nearest else ""

    def where(self, name: str) -> str:
        return f"{self.path}/{self.prefix}{name}"

    def size(self, name: str) -> int | None:
        entry = self.entries.get(self.prefix + name)
        return None if entry is None else entry.file_size

    def read(self, name: str) -> bytes:
        if self.prefix + name not in self.entries:
            raise unreadable(self.where(name), "the file is missing")
        try:
            return self._archive().read(self.prefix + name)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise unreadable(self.where(name), f"the zip is damaged here ({error})") from error
        except (KeyError, RuntimeError) as error:  # replaced meanwhile; encrypted, unknown packing
            raise unreadable(self.where(name), str(error)) from error

    def _archive(self) -> zipfile.ZipFile:
        if getattr(self._mine, "process", None) != os.getpid():
            self._mine.archive = zipfile.ZipFile(self.path)
            self._mine.process = os.getpid()
        archive: zipfile.ZipFile = self._mine.archive
        return archive

    def fingerprint(self, names: Sequence[str]) -> dict[str, str]:
        """One hash of the names, sizes and checksums of these files, which a zip has in its index."""
        digest = hashlib.sha256()
        for name in names:
            entry = self.entries.get(self.prefix + name)
            known = (name, entry.file_size, entry.CRC) if entry is not None else (name,)
            digest.update(repr(known).encode())
        return {"zip_index_sha256": digest.hexdigest()}


def open_files(path: str | Path, holding: str | None = None) -> FolderFiles | ZipFiles:
    """The files of a folder or a zip; in a zip, below the folder that holds the file `holding`."""
    path = Path(path)
    if path.is_dir():
        return FolderFiles(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or zip {path}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is neither a folder nor a zip")
    return ZipFiles(path, holding)


def check_file_name(name: str, source: str) -> None:
    """Refuse a name that leads out of the folder of images."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{source}: {name!r} is not a file name within the folder of images; "
            f"absolute paths and '..' are not allowed"
        )


def read_labels(path: Path, what: str) -> bytes:
    """The content of a label file, or an error that says what it should have been."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, but {what} was expected")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} ({what})")
    return path.read_bytes()


def sha256(data: bytes) -> str:
    """The SHA-256 of these bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def duplicate(names: Iterable[Hashable]) -> Hashable | None:
    """The first element that occurs for the second time, or None."""
    seen: set[Hashable] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
