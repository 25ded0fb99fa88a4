"""Results too large for an item: objects in S3, written before the record that points to them."""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.record import Elsewhere, Record
from onceward.core.retries import jittered
from onceward.core.urls import shown_url
from onceward.errors import ResultUnavailable, StoreError
from onceward.stores.dynamodb.items import Value
from onceward.wire.calls import ObjectCall, ServiceAnswer

Ask = Callable[..., Steps[ServiceAnswer]]  # a store's ``ask``
PLACE: Final = "s3://"  # start of the text of a result kept elsewhere; no JSON starts so
ROOM: Final = 380_000  # bytes of a result in an item of at most 400 KB, beside the key, an error and the names
# Seconds before an object is written again. A record does not wait longer for S3.
_PAUSES: Final = (0.05, 0.2, 0.5, 1.0)
_AWAY: Final = 10.0  # seconds without requests to S3 after a failure, so that a retry does not wait again
_REMEMBERED: Final = 100
# The start of the content's SHA-256, at the end of a name
_DIGEST: Final = re.compile(r"-([0-9a-f]{16,64})\.json\Z").search


class Blobs:
    """A folder of a bucket.

    Each result has its own object, named after its claim and content, so a worker that lost its claim overwrites nothing.
    Objects whose records are gone are garbage: give the folder a lifecycle rule longer than the retention.

    Args:
        url: ``s3://bucket`` or ``s3://bucket/prefix``.

    Raises:
        ValueError: the URL has another form.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not self.bucket:
            raise ValueError(f"blobs={shown_url(url)!r}: write s3://bucket/prefix")
        self.prefix = prefix.strip("/")
        # Recent objects: a completion that a renewal has outrun is written again, and must not be outrun again.
        self._recent: dict[str, None] = {}
        self._away: tuple[float, StoreError] | None = None

    def put(self, ask: Ask, record: Record) -> Steps[Value]:
        """Write the record's result to an object, and return the attribute that points to it.

        Raises:
            StoreError: S3 refused it, or was away for a few seconds. The record does not wait longer.
        """
        assert record.result is not None
        content = record.result.encode()
        digest = sha256(content).hexdigest()
        name = f"{sha256(record.key.encode()).hexdigest()}/{record.fence}-{record.owner}-{digest}.json"
        key = f"{self.prefix}/{name}" if self.prefix else name
        if key not in self._recent:
            yield from self._write(ask, ObjectCall("PUT", self.bucket, key, content))
            self._recent[key] = None
            for old in list(self._recent)[:-_REMEMBERED]:
                self._recent.pop(old, None)
        return {"M": {"bucket": {"S": self.bucket}, "key": {"S": key}}}

    def _write(self, ask: Ask, call: ObjectCall) -> Steps[None]:
        if self._away is not None and boottime() < self._away[0]:
            raise self._away[1]
        began = boottime()
        for pause in (*_PAUSES, 0.0):
            try:
                yield from ask(call)
            except StoreError as error:
                if not error.transient:
                    raise
                if not pause or boottime() - began > sum(_PAUSES):  # as after an unanswered request
                    self._away = boottime() + _AWAY, error
                    raise
            else:
                return
            yield jittered(pause)


def elsewhere(ask: Ask, blobs: Blobs | None, record: Record, value: Value) -> Elsewhere:
    """Return the result that ``value`` points to, not yet fetched."""
    place = value["M"]
    bucket, key = str(place["bucket"]["S"]), str(place["key"]["S"])
    result = Elsewhere(f"{PLACE}{bucket}/{key}")
    result.fetch = lambda: _fetch(ask, blobs, record.key, ObjectCall("GET", bucket, key))
    return result


def _fetch(ask: Ask, blobs: Blobs | None, key: str, call: ObjectCall) -> Steps[str]:
    where = f"s3://{call.bucket}/{call.key}"
    if blobs is None:
        raise ResultUnavailable(key, f"its result is in {where}, and this ledger was opened without blobs=")
    if call.bucket != blobs.bucket:  # who can write the table must not choose what we read
        raise ResultUnavailable(key, f"its result is in s3://{call.bucket}, and blobs= is another bucket")
    answer = yield from ask(call, accept=404)
    if answer.status == 404:
        raise ResultUnavailable(key, f"its result is no longer at {where}")
    assert isinstance(answer.body, bytes)
    digest = _DIGEST(call.key)
    if digest is None or not sha256(answer.body).hexdigest().startswith(digest[1]):
        raise ResultUnavailable(
            key, f"the object at {where} is not the one recorded: its SHA-256 differs from the one in its name"
        )
    try:
        return answer.body.decode()
    except UnicodeDecodeError as error:
        raise ResultUnavailable(key, f"the object at {where} is not text in UTF-8") from error


def is_large(value: Value, messages: str | None = None) -> bool:
    """Return whether a result is too large for an item that also has these messages."""
    content = value.get("B") or value.get("S") or ""
    room = ROOM if messages is None else ROOM - len(messages.encode())
    if len(content) * 4 <= room:  # no character has more than four bytes
        return False
    return len(content if isinstance(content, bytes) else content.encode()) > room
