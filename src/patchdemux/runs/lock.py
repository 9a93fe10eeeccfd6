"""One writer per run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from patchdemux.runs.errors import RunError

# Locked on Windows, where other processes cannot read what is locked: far behind the process id.
_FAR = 1 << 30


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the run at `path` against every other process, by a lock file beside it.

    The operating system holds the lock, not the existence of the file: it is gone as soon as its
    process is, however that died, so there are no stale locks. The process id is there to be read.
    """
    name = path.with_name(path.name + ".lock")
    try:
        name.parent.mkdir(parents=True, exist_ok=True)
        file = _acquire(name)
    except OSError as error:
        raise RunError(
            f"cannot write a run to {path}: {error.strerror or error}; give a folder that can be "
            f"written to, or solve this and run the same again: what is stored already stays"
        ) from error
    if file is None:
        owner = name.read_text().strip() or "unknown"
        raise RunError(
            f"{path} is being written by another process (process id {owner}); "
            f"wait for it, or stop it and run this again to resume"
        )
    try:
        yield
    finally:
        if sys.platform == "win32":  # an open file cannot be removed there
            file.close()
            name.unlink(missing_ok=True)
        else:
            name.unlink(missing_ok=True)
            file.close()


def _acquire(name: Path) -> FileIO | None:
    """The locked file with this process's id in it; None if another process holds it."""
    while True:
        file = FileIO(name, "a")
        if not _lock(file):
            file.close()
            return None
        # Its last owner may have removed the file between our opening and our locking it.
        if name.exists() and os.path.samestat(os.fstat(file.fileno()), name.stat()):
            try:
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), str(os.getpid()).encode())
            except OSError:
                file.close()
                raise
            return file
        file.close()


def _lock(file: FileIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
