"""The checks of a ledger: a DynamoDB table, an SQLite file, or memory."""

import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs, urlsplit

from onceward.aws.doctor.facts import Check, Facts, File, Finding, Table

_TTL: Final = "DynamoDB Developer Guide, Using time to live (TTL) in DynamoDB"
_CAPACITY: Final = "DynamoDB Developer Guide, Managing throughput capacity automatically with DynamoDB auto scaling"
_RESTORE: Final = "DynamoDB Developer Guide, Point-in-time backups for DynamoDB"
_GLOBAL: Final = "DynamoDB Developer Guide, Global tables: how they work"
_SIGNED: Final = "IAM User Guide, AWS Signature Version 4 for API requests"
_WAL: Final = "sqlite.org/wal.html"

_SKEW: Final = 60.0  # seconds; AWS refuses requests that are signed 5 minutes off
_FREE: Final = 100 * 1024 * 1024  # bytes
_NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph-fuse",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "beegfs",
        "gpfs",
    }
)
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


def table(facts: Facts) -> Iterator[Finding]:
    """Check that there is a table, and that it is one for this ledger."""
    ledger = facts.ledger
    if not isinstance(ledger, Table):
        return
    if ledger.status is None:
        yield Finding(
            "error",
            "table",
            f"there is no table of {ledger.url} in this region",
            "no handler runs without its ledger",
            f"create it with `onceward init --store {shlex.quote(ledger.url)}`, or check the name and the region",
        )
    elif ledger.keys != ledger.wanted:
        yield Finding(
            "error",
            "key schema",
            f"the table's key is {_written(ledger.keys)}, and that of {ledger.url} is {_written(ledger.wanted)}",
            "DynamoDB refuses every write",
            "give the ledger another table, or say in its URL how records stand in this one (docs/existing-tables.md)",
        )
    elif ledger.status not in {"ACTIVE", "UPDATING"}:
        yield Finding(
            "error",
            "table",
            f"the table of {ledger.url} is {ledger.status}",
            "it takes no writes",
            "wait until it is ACTIVE",
        )
    else:
        yield Finding("ok", "table", f"{ledger.url} is {ledger.status}, key {_written(ledger.keys)}")
        yield from _settings(ledger)


def _settings(ledger: Table) -> Iterator[Finding]:
    yield from _expiry(ledger)
    yield from _capacity(ledger)
    if ledger.recovers is False:
        yield Finding(
            "warning",
            "point-in-time recovery",
            f"the table of {ledger.url} has none",
            "when it is deleted or damaged, everything that was done can be done again",
            f"`{_recovering(ledger)}`; it is charged by the table's size",
            _RESTORE,
        )
    elif ledger.recovers:
        yield Finding("ok", "point-in-time recovery", "on")
    if ledger.regions:
        yield Finding(
            "warning",
            "global table",
            f"the table of {ledger.url} has replicas in {', '.join(ledger.regions)}",
            "unless they are strongly consistent, a key that is claimed in one region can be claimed in another a moment later",
            "let all consumers of a queue use the table in one region, or make it strongly consistent (MRSC)",
            _GLOBAL,
        )
    low, high = ledger.skew
    if low > _SKEW or high < -_SKEW:
        ahead = f"{low:.0f} s ahead of" if low > 0 else f"{-high:.0f} s behind"
        yield Finding(
            "warning",
            "clock",
            f"this machine's clock is {ahead} DynamoDB's",
            "onceward goes by DynamoDB's, but other programs here sign by this one, and are refused when it is 5 minutes off",
            "set it, as by chrony",
            _SIGNED,
        )
    else:
        yield Finding("ok", "clock", "this machine's is right")


def _expiry(ledger: Table) -> Iterator[Finding]:
    if ledger.ttl is None:
        return
    if ledger.ttl == ledger.expiry:
        yield Finding("ok", "TTL", f"on {ledger.ttl}")
    elif not ledger.ttl:
        yield Finding(
            "warning",
            "TTL",
            f"the table of {ledger.url} has none",
            "expired records stay, and are charged, until `onceward purge` deletes them",
            f"`onceward init --ttl --store {shlex.quote(ledger.url)}`; DynamoDB then deletes every item whose {ledger.expiry} is a "
            "time in the past, also those that are none of this ledger's",
            _TTL,
        )
    else:
        dangerous = ledger.ttl in ledger.times
        yield Finding(
            "error" if dangerous else "warning",
            "TTL",
            f"the table's is on {ledger.ttl}, and records of {ledger.url} expire by {ledger.expiry}",
            "DynamoDB deletes records that are still needed"
            if dangerous
            else "expired records stay, and are charged, until `onceward purge` deletes them",
            f"give the ledger another table, or switch its TTL off, and an hour later on for {ledger.expiry}: "
            f"`{_without_expiry(ledger)}`, then `onceward init --ttl --store {shlex.quote(ledger.url)}`",
            _TTL,
        )


def _recovering(ledger: Table) -> str:
    """Return the command that switches point-in-time recovery on; init does so only where the TTL is the ledger's."""
    if ledger.ttl == ledger.expiry:
        return f"onceward init --pitr --store {shlex.quote(ledger.url)}"
    return (
        f"{_aws(ledger, 'update-continuous-backups')} "
        "--point-in-time-recovery-specification PointInTimeRecoveryEnabled=true"
    )


def _without_expiry(ledger: Table) -> str:
    specification = f"Enabled=false,AttributeName={ledger.ttl}"
    return f"{_aws(ledger, 'update-time-to-live')} --time-to-live-specification {shlex.quote(specification)}"


def _aws(ledger: Table, action: str) -> str:
    """Return the command for a table where the ledger's URL says it is, and not for one of its name somewhere else."""
    told = parse_qs(urlsplit(ledger.url).query)
    options = {
        "--table-name": [ledger.name],
        "--region": told.get("region", []),
        "--endpoint-url": told.get("endpoint", []),
    }
    return shlex.join(
        ["aws", "dynamodb", action, *(part for name, given in options.items() for one in given for part in (name, one))]
    )


def _capacity(ledger: Table) -> Iterator[Finding]:
    if ledger.on_demand or ledger.scaled:
        yield Finding("ok", "capacity", "on demand" if ledger.on_demand else "provisioned, and scaled")
        return
    unless = "" if ledger.scaled is False else ", and whether it is scaled is not known"
    yield Finding(
        "warning",
        "capacity",
        f"the table of {ledger.url} has provisioned capacity{unless}",
        "when it is used up, no handler can begin, and results wait to be recorded until leases end",
        "bill it by request (PAY_PER_REQUEST), or have it scaled",
        _CAPACITY,
    )


def file(facts: Facts) -> Iterator[Finding]:
    """Check the file of an SQLite ledger, and where it is."""
    ledger = facts.ledger
    if not isinstance(ledger, File):
        return
    check = "file"
    if not ledger.writable:
        yield Finding(
            "error",
            check,
            f"this user may not write {ledger.path}, or not make it",
            "no handler runs without its ledger",
            "let this user write the file and its folder",
        )
    if ledger.kind in _NETWORK:
        yield Finding(
            "error",
            check,
            f"{ledger.path} is on a network file system ({ledger.kind})",
            "SQLite's locks and shared memory do not work between machines: two workers can have one key",
            "put it on a disk of the machine that all workers run on, or use DynamoDB",
            _WAL,
        )
    elif ledger.kind in _VOLATILE:
        yield Finding(
            "warning",
            check,
            f"{ledger.path} is in memory ({ledger.kind})",
            "it is gone after a restart, and everything that was done can be done again",
            "put it on a disk",
        )
    elif ledger.kind is None:
        yield Finding(
            "skipped",
            check,
            f"this system does not tell what kind of file system {ledger.path} is on",
            "on one of a network two workers can have one key",
            "make sure that it is a disk of this machine",
            _WAL,
        )
    elif ledger.writable:
        yield Finding("ok", check, f"{ledger.path} is on a local disk ({ledger.kind})")
    if ledger.free < _FREE:
        yield Finding(
            "warning",
            "free space",
            f"{ledger.free // 1024 // 1024} MiB are left where {ledger.path} is",
            "when the disk is full, no handler can begin, and no result can be recorded",
            "make room, or `onceward purge`",
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """Check that a ledger outlives its process."""
    if isinstance(facts.ledger, str):
        yield Finding(
            "error",
            "ledger",
            f"{facts.ledger} is gone with its process, and no other process sees it",
            "after a restart everything that was done can be done again",
            "give a ledger in a file or in DynamoDB",
        )


def _written(keys: tuple[tuple[str, str], ...]) -> str:
    return " and ".join(f"{name} ({kind})" for name, kind in keys)


LEDGER_CHECKS: Final[tuple[Check, ...]] = (table, file, memory)
