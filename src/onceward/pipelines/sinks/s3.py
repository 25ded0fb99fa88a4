"""The sink ``s3``."""

import asyncio
import gzip
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression, Seconds
from onceward.pipelines.sinks.bucket import Bucket
from onceward.pipelines.sinks.contract import SinkAction, SinkSettings
from onceward.pipelines.sinks.groups import ObjectGroup, ObjectGrouping

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit

_MOST_LOOKS: Final = 100  # objects of earlier attempts


class S3Sink(SinkSettings, kw_only=True):
    """Write messages as lines of JSON to objects in S3, each message once.

    A message is done when its object is there. Before an object is written, the record of each of its messages has its name. After a
    crash, onceward looks for that object. If it is not there, an empty object takes its place, so that a late request cannot
    write it any more. Then the message goes into another object. S3's conditional writes do this, so the bucket must have them.
    """

    bucket: Annotated[str, Meta(description="The bucket's name.", min_length=1)]
    prefix: Annotated[str, Meta(description="How the objects' names begin, as in orders/.")] = ""
    message: Annotated[Expression, Meta(description="What is written.")] = "message"
    gzip: Annotated[bool, Meta(description="Whether to compress the objects.")] = False
    count: Annotated[
        int, Meta(description="Messages of an object, at most. More than concurrency: cannot wait.", ge=1)
    ] = 1000
    bytes: Annotated[int, Meta(description="Bytes of an object before it is compressed, about.", ge=1)] = (
        8 * 1024 * 1024
    )
    age: Annotated[Seconds, Meta(description="How long the first message of an object waits at most.")] = "1s"
    region: Annotated[str | None, Meta(description="The region, if it is not that of the environment.")] = None

    @property
    def title(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def build(self, kit: "Kit") -> SinkAction:
        if not self.bucket.replace("-", "").replace(".", "").isalnum() or not self.bucket.isascii():
            kit.mistake("bucket", f"{self.bucket!r} is not the name of a bucket")
        find, age = kit.expression("message", self.message), kit.seconds("age", self.age)
        bucket = Bucket(self.bucket, self.region)
        end = ".ndjson.gz" if self.gzip else ".ndjson"

        async def write(name: str, content: bytes) -> None:
            packed = gzip.compress(content, mtime=0) if self.gzip else content
            await bucket.write(f"{self.prefix}{name}{end}", packed)

        grouping = ObjectGrouping(write, min(self.count, kit.concurrency), self.bytes, age)

        async def close() -> None:
            bucket.close()

        kit.closing(close)

        async def take(message: PipelineMessage, call: "PipelineCall") -> None:
            line = msgspec.json.encode(find(message)) + b"\n"
            member = _Member(grouping, f"{call.key()} {call.claim.fence}", line)
            for number in range(_MOST_LOOKS):
                name = await _noted(member, call, number)
                if member.group is not None:
                    await asyncio.shield(member.group.written)
                    return
                if await bucket.has(f"{self.prefix}{name}{end}"):
                    return
            raise RuntimeError(f"this message was in {_MOST_LOOKS} objects, none of which was written")

        return take


class _Member:
    """A message that joins a group when its step runs. If the step is recorded, it never does."""

    def __init__(self, grouping: ObjectGrouping, token: str, line: bytes) -> None:
        self._grouping, self._token, self._line = grouping, token, line
        self.group: ObjectGroup | None = None

    async def joined(self) -> str:
        self.group = self._grouping.join(self._token, self._line)
        return await asyncio.shield(self.group.name)  # a message that is cancelled cancels no other


async def _noted(member: _Member, call: "PipelineCall", number: int) -> str:
    """Return the name of the object that a message is in: that of an earlier attempt, or of a group that it joins now."""
    try:
        name: str = await call.claim.step_async((call.step, "object", number), _joined, member)
    except BaseException as error:
        if member.group is not None:
            member.group.fail(error)
        raise
    if member.group is not None:
        member.group.note()
    return name


async def _joined(member: _Member) -> str:
    return await member.joined()
