"""Results that are too large for an item: objects in S3, written before the record that points at them."""

from hashlib import sha256
from typing import TYPE_CHECKING, Final, cast

from onceward.core.drive import Steps
from onceward.core.record import Record
from onceward.stores.dynamodb.calls import Answer, ObjectCall
from onceward.stores.dynamodb.items import Item, Value

if TYPE_CHECKING:
    from onceward.stores.dynamodb.store import DynamoStore

ROOM: Final = 380_000  # bytes of a result in an item of at most 400 KB, beside the key, an error and the names


class Blobs:
    """A folder of a bucket.

    Every write has an object of its own, named after its claim, so a worker that lost its claim overwrites nothing. An
    object whose record is gone is garbage: give the folder a lifecycle rule that is longer than the retention.

    Args:
        url: ``s3://bucket`` or ``s3://bucket/prefix``.

    Raises:
        ValueError: the URL has another form.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not self.bucket:
            raise ValueError(f"blobs={url!r}: write s3://bucket/prefix")
        self.prefix = prefix.strip("/")

    def kept(self, store: "DynamoStore", record: Record) -> Steps[Value]:
        """Write the record's result to an object, and return the attribute that points at it."""
        assert record.result is not None
        name = f"{sha256(record.key.encode()).hexdigest()}/{record.fence}-{record.owner}-{record.beat}.json"
        key = f"{self.prefix}/{name}" if self.prefix else name
        yield from store.ask(ObjectCall("PUT", self.bucket, key, record.result.encode()))
        return {"M": {"bucket": {"S": self.bucket}, "key": {"S": key}}}

    def fetched(self, store: "DynamoStore", record: Record, value: Value) -> Steps[Record]:
        """Return the record with the result that ``value`` points at, or without one when the object is gone."""
        place = cast("Item", value["M"])
        call = ObjectCall("GET", cast("str", place["bucket"]["S"]), cast("str", place["key"]["S"]))
        answer = yield from store.ask(call, gone=404)
        if answer.status == 404:
            return record._replace(error=f"its result is no longer at s3://{call.bucket}/{call.key}")
        return record._replace(result=_text(answer))


def is_large(value: Value) -> bool:
    """Tell whether a result does not fit into an item."""
    content = cast("str | bytes", value.get("B") or value.get("S") or "")
    if len(content) * 4 <= ROOM:  # no character has more than four bytes
        return False
    return len(content if isinstance(content, bytes) else content.encode()) > ROOM


def _text(answer: Answer) -> str:
    assert isinstance(answer.body, bytes)
    return answer.body.decode()
