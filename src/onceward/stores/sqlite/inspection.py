"""The facts about an SQLite ledger's file and its place, for doctor."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onceward.stores.inspection import Finding
from onceward.stores.sql.differences import columns_in, differences
from onceward.stores.sqlite.provision import read
from onceward.stores.sqlite.schema import INDEXES, SCHEMA, TABLE
from onceward.stores.sqlite.store import SqliteStore

_WAL: Final = "sqlite.org/wal.html"

_FREE: Final = 100 * 1024 * 1024  # bytes
_SHARED: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs")
_FUSE: Final = ("sshfs", "glusterfs", "ceph-fuse", "s3fs", "gcsfuse", "rclone")
_NETWORK: Final = frozenset((*_SHARED, *(f"fuse.{name}" for name in _FUSE)))
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


class File(NamedTuple):
    """A ledger in an SQLite file."""

    path: str
    kind: str | None  # the file system's kind, such as ``ext4``; None if unknown
    free: int  # free bytes there
    writable: bool  # whether this user can write the file, or make it
    there: bool = True  # whether there is a file with something in it
    differs: tuple[Finding, ...] = ()  # what of the table is not as this version needs it

    @property
    def is_local(self) -> bool:
        return True

    def findings(self) -> Iterator[Finding]:
        check = "file"
        if not self.writable:
            says = f"this user may not write {self.path}, or not make it"
            fix = "let this user write the file and its folder"
            yield Finding("error", check, says, "no handler runs without its ledger", fix)
        elif not self.there:
            why = "a worker makes an empty ledger there: if the path is wrong, what was done before runs again"
            fix = "correct --store, or make the ledger with `onceward init`"
            yield Finding("unknown", check, f"there is no ledger at {self.path} yet", why, fix)
        if self.kind in _NETWORK:
            says = f"{self.path} is on a network file system ({self.kind})"
            why = "SQLite's locks and shared memory do not work between machines: two workers can have one key"
            fix = "put it on a disk of the machine that all workers run on, or use DynamoDB"
            yield Finding("error", check, says, why, fix, _WAL)
        elif self.kind in _VOLATILE:
            why = "it is gone after a restart, and everything that was done can be done again"
            yield Finding("warning", check, f"{self.path} is in memory ({self.kind})", why, "put it on a disk")
        elif self.kind is None:
            says = f"this system does not tell what kind of file system {self.path} is on"
            why = "on one of a network two workers can have one key"
            yield Finding("skipped", check, says, why, "make sure that it is a disk of this machine", _WAL)
        elif self.writable and self.there:
            yield Finding("ok", check, f"{self.path} is on a local disk ({self.kind})")
        yield from self.differs
        if self.free < _FREE:
            says = f"{self.free // 1024 // 1024} MiB are left where {self.path} is"
            why = "when the disk is full, no handler can begin, and no result can be recorded"
            yield Finding("warning", "free space", says, why, "make room, or `onceward purge`")


def inspect(store: SqliteStore) -> File:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    path = store.path
    folder = next(part for part in Path(path).parents if part.exists())
    there = Path(path).exists()
    may = os.access(path, os.R_OK | os.W_OK) if there else folder == Path(path).parent
    writable = may and os.access(folder, os.W_OK | os.X_OK)
    filled = there and os.path.getsize(path) > 0
    differs = _differences(path) if filled else ()
    return File(path, _kind(str(folder)), shutil.disk_usage(folder).free, writable, filled, differs)


def _differences(path: str) -> tuple[Finding, ...]:
    columns = {row[1]: row[2].lower() for row in read(path, f"PRAGMA table_info({TABLE})")}
    if not columns:  # it is no ledger, or cannot be read
        return ()
    there = [row[0] for row in read(path, "SELECT name FROM sqlite_master WHERE type = 'index'")]
    return differences(columns_in(SCHEMA[0]), columns, (f"{TABLE}_expiry", *INDEXES), there)


def _kind(folder: str) -> str | None:
    """Return the kind of a folder's file system, if Linux gives it (proc_pid_mountinfo(5))."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(folder)
    found = {}
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")  # a space is written \040
        if real == point or real.startswith(point.rstrip("/") + "/"):
            found[point] = after.split()[0]  # a later mount hides an earlier one
    return found[max(found, key=len)] if found else None
