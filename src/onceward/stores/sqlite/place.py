"""The files of an SQLite ledger: whether they are still the ones opened, and who may read them."""

import os
from pathlib import Path

from onceward.errors import StoreError

Place = tuple[tuple[int, int] | None, ...]  # device and inode of the file, its -wal and its -shm
CHECK_EVERY = 0.02  # seconds between two checks; one costs 5 µs


def identify(path: str, real: str) -> Place:
    """Return the files there now. SQLite puts -wal and -shm beside the ``real`` file, behind all links."""
    return _identity(path), _identity(real + "-wal"), _identity(real + "-shm")


def check(path: str, real: str, opened: Place, *, whole: bool = True) -> None:
    """Raise StoreError unless the files at ``path`` are the ``opened`` ones. ``whole`` includes -wal and -shm."""
    now = identify(path, real)
    if now == opened or (now[0] == opened[0] and not whole):
        return
    if now[0] != opened[0]:
        raise StoreError(
            f"ledger {path}: the file was moved, deleted or replaced while this worker had it open, and other workers would "
            "not see what this one writes. Put it back, or restart the worker; to swap a ledger, stop all workers first"
        )
    raise StoreError(
        f"ledger {path}: its -wal or -shm file was deleted while this worker had it open, and other workers would not see "
        "what this one writes. Stop all workers before you start one again: the last to end writes the -wal into the ledger"
    )


def mounts() -> dict[str, str]:
    """Return the kind of file system at each mount point, such as ``ext4``, if Linux tells it (proc_pid_mountinfo(5))."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]
    except OSError:
        return {}
    parts = [line.partition(b" - ") for line in lines]
    return {  # a space is written \040; a later mount hides an earlier one
        os.fsdecode(before.split(b" ")[4].decode("unicode_escape").encode("latin-1")): after.split()[0].decode()
        for before, _, after in parts
    }


def check_mount(path: str, real: str) -> None:
    """Raise StoreError if the file alone is mounted: other workers would have another -wal and -shm beside it."""
    if real in mounts():
        raise StoreError(
            f"ledger {path}: this file alone is mounted here, so its -wal and -shm would be other files than those of other workers, and "
            "lost with this container. Mount its folder"
        )


def make_private(path: str) -> None:
    """If there is no file, make an empty one that only its owner can read. SQLite gives -wal and -shm the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:  # the file exists, or SQLite says what is wrong
        pass


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
