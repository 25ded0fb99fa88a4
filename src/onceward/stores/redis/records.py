"""How a write becomes the arguments of a script, and a script's answer a record or a reply."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from msgspec.msgpack import decode

from onceward.core.origin import read_origin
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply, Write
from onceward.stores.contract import Damaged, DamagedRecord
from onceward.stores.redis.scripts import INDEX
from onceward.stores.survey import UNFINISHED

_TEXTS: Final = (
    "fingerprint", "result", "error", "worker", "needs", "steps", "unsent", "origin", "input", "history", "trace",
)  # fmt: skip
_NOTHING: Final = (None,) * len(_TEXTS)
_texts: Final = itemgetter(*map(Record._fields.index, _TEXTS))
# The place in KEYS of the index of a status.
_PLACES: Final[dict[str | None, list[int]]] = {status: [INDEX[status]] for status in UNFINISHED}
Held = Mapping[str, str]
Flat = list[bytes]


def arguments(write: Write, seen: Record | None) -> list[object]:
    """Return the argument of a script that makes this write: of INSERT, or of SWAP for the version ``seen``.

    Returns:
        The fields as HSET takes them, but for those that need the server's time; the key; its fence, or what a new fence is at least;
        seconds of the lease, and until when it lasts at least; seconds until the record expires, and until its messages are due;
        whether it begins now; the fields that go; the places in KEYS of the indexes that the key leaves and enters; its root, False
        if it has none any more, None if that stays; whether waiters are told; whether Redis deletes it when it expires, None if that
        stays; and the version.
    """
    (key, status, owner, fence, beat, tries, mark, result, error, created_at, lease, keep, until, by, needs, did,
        unsent, due, origin, input_, past, trace) = write[:]  # fmt: skip # as in core/record.py
    fields = ["key", key, "status", status, "owner", owner, "beat", str(beat), "attempts", str(tries)]
    texts = (mark, result, error, by, needs, did, unsent, origin, input_, past, trace)
    drops = []
    for name, text, old in zip(_TEXTS, texts, _NOTHING if seen is None else _texts(seen), strict=True):
        if text is not None:
            fields += (name, text)
        elif old is not None:
            drops.append(name)
    # Its text costs as much as all the others.
    if created_at is not None and (seen is None or created_at != seen.created_at):
        fields += ("created_at", f"{created_at:.6f}")
    is_deleted = status == COMPLETED and keep is not None and unsent is None
    into = _PLACES.get(status, []) if due is None else [*_PLACES.get(status, []), INDEX["unsent"]]
    if seen is None:
        return [fields, key, str(fence), None if fence else 0, lease, until, keep, due, created_at is None,
            None, [], into, origin and _root(origin), False, is_deleted or None]  # fmt: skip
    _, was, owner, held, beat, *_ = seen
    out = _PLACES.get(was, []) if was != status else []
    if due is None and seen.due_at is not None:
        drops.append("due_at")
        out = [*out, INDEX["due"], INDEX["unsent"]]
    if keep is None and seen.expires_at is not None:
        drops.append("expires_at")
        out = [*out, INDEX["ends"]]
    root = None if origin == seen.origin else _root(origin)
    return [fields, key, str(fence), None if fence == held else fence, lease, until, keep, due, created_at is None,
        drops or None, out, into, root, was == IN_PROGRESS != status,
        is_deleted or (False if was == COMPLETED else None), owner, str(held), str(beat)]  # fmt: skip


def _root(origin: str | None) -> str | bool:
    came = read_origin(origin)
    return came is not None and came.root


def reply_to(write: Write, answer: bytes) -> Reply:
    """Return the reply to a write. DamagedRecord: it met a record that cannot be read."""
    fields = decode(answer)
    now = float(fields[1])
    if fields[0] != 1:
        return Reply(False, record_of(fields[2]) if len(fields) > 2 else None, now)
    _, _, fence, until, expires_at, due_at = fields
    w = write
    record = (w.key, w.status, w.owner, int(fence), w.beat, float(until), w.attempts, w.fingerprint, w.result, w.error,
        now if w.created_at is None else w.created_at, float(expires_at) if expires_at else None, now, w.worker, w.needs, w.steps, w.unsent,
        float(due_at) if due_at else None, w.origin, w.input, w.history, w.trace)  # fmt: skip
    return Reply(True, tuple.__new__(Record, record), now)  # what Record(...) does, in half the time


def reply_of(answer: bytes) -> Reply:
    """Return the reply of a verb that writes no record."""
    fields = decode(answer)
    return Reply(fields[0] == 1, record_of(fields[2]) if len(fields) > 2 else None, float(fields[1]))


def record_of(held: Held) -> Record:
    """Return the record that a hash is. DamagedRecord: it is none."""
    get = held.get
    try:
        ends, changed, due = get("expires_at"), get("updated_at"), get("due_at")
        fields = (held["key"], held["status"], held["owner"], int(held["fence"]), int(held["beat"]),
            float(held["lease_until"]), int(held["attempts"]), get("fingerprint"), get("result"), get("error"),
            float(held["created_at"]), float(ends) if ends else None, float(changed) if changed else None, get("worker"),
            get("needs"), get("steps"), get("unsent"), float(due) if due else None, get("origin"), get("input"),
            get("history"), get("trace"))  # fmt: skip
    except (KeyError, ValueError) as error:
        raise damaged([text.encode() for pair in held.items() for text in pair], error) from error
    return tuple.__new__(Record, fields)  # what Record(...) does, in half the time


def damaged(flat: Flat, error: Exception) -> DamagedRecord:
    """Return the error of a hash that is no record."""
    key = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"key", b"?")
    seen = damaged_of(key, flat, f"{type(error).__name__}: {error}")
    return DamagedRecord(
        f"{seen.key}: the ledger has a record of this key that cannot be read: {seen.why}. Look at it with redis-cli, or "
        "clear the key, so that the next delivery runs",
        seen,
    )


def damaged_of(key: bytes, flat: Flat, why: str = "a field is missing, or is no number") -> Damaged:
    """Return what is known of a hash that is no record."""
    return Damaged(key.decode(errors="backslashreplace"), why, tuple(flat))


def read(rows: Sequence[Sequence[Any]]) -> tuple[list[Record], list[Damaged]]:
    """Return the records of a page, and what cannot be read. What has gone meanwhile is left out."""
    records: list[Record] = []
    damaged: list[Damaged] = []
    for key, flat in rows:
        try:
            if flat:
                texts = [one.decode() for one in flat]
                records.append(record_of(dict(zip(texts[::2], texts[1::2], strict=True))))
        except UnicodeDecodeError as error:
            damaged.append(damaged_of(key, flat, f"{type(error).__name__}: {error}"))
        except DamagedRecord as error:
            damaged.append(error.damaged._replace(key=key.decode(errors="backslashreplace")))
    return records, damaged
