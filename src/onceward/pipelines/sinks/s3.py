"""The sink ``s3``, and objects that are written once: the first write of a name is its content for good."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from onceward.errors import StoreError
from onceward.pipelines.call import PipelineCall, PipelineMessage, StepFailed
from onceward.pipelines.kit import Kit, SinkAction, SinkSettings
from onceward.pipelines.settings import MESSAGE, Expression, Seconds, Text, given
from onceward.wire.calls import ObjectCall, ServiceAnswer, code_of, message_of
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

Place = tuple[str, str]
Write = Callable[[Place, bytes], Awaitable[None]]


class ObjectGroup:
    """The messages of one object. It is closed when it is full or old enough.

    Each member notes the object's name in its record before anything is written. So after a crash it knows where to look.

    Args:
        write: makes the object durable.
        place_of: returns its place by its name.
        count: members, at most.
        size: bytes after which the group is closed.
        age: seconds after its first member.

    Attributes:
        place: of the object; a future, until the group is closed.
        written: ends when the object is durable.
    """

    def __init__(self, write: Write, place_of: Callable[[str], Place], count: int, size: int, age: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.place: asyncio.Future[Place] = self.loop.create_future()
        self.loop.call_later(age, self.close)
        self._place_of, self._count, self._left = place_of, count, size
        self._members: list[_Member] = []
        self.written = asyncio.create_task(self._written(write), name="onceward-group")
        self.written.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio would complain

    def add(self, member: "_Member") -> None:
        """Add a member before the group is closed."""
        self._members.append(member)
        self._left -= len(member.line)
        if len(self._members) >= self._count or self._left <= 0:
            self.close()

    def close(self) -> None:
        """Give the group its name. No two groups have one: a member that comes again has another fence."""
        if not self.place.done():
            digest = sha256("\n".join(sorted(member.token for member in self._members)).encode())
            self.place.set_result(self._place_of(digest.hexdigest()[:32]))

    async def _written(self, write: Write) -> None:
        place = await self.place
        try:
            await asyncio.gather(*(member.noted for member in self._members))
        except StepFailed as error:  # nobody can tell whether its record has the name
            raise StepFailed(f"another message of this file could not be recorded: {error}") from error
        await write(place, b"".join(member.line for member in self._members))


class ObjectGrouping(msgspec.Struct, eq=False):
    """Puts messages into groups; the arguments are those of a group.

    Attributes:
        group: the one that is open.
    """

    write: Write
    place_of: Callable[[str], Place]
    count: int
    size: int
    age: float
    group: ObjectGroup | None = None

    def join(self, member: "_Member") -> ObjectGroup:
        """Add a message, and return its group."""
        group = self.group
        if group is None or group.place.done() or group.loop is not asyncio.get_running_loop():
            group = self.group = ObjectGroup(self.write, self.place_of, self.count, self.size, self.age)
        group.add(member)
        return group


_TIMEOUT: Final = 60.0  # seconds for one request
_PAUSES: Final = (0.1, 0.5, 2.0, 5.0, None)  # seconds; None: no other try
_CREATE: Final = {"If-None-Match": "*"}  # S3 API Reference, PutObject
_FIRST_BYTE: Final = {"Range": "bytes=0-0"}


class Buckets:
    """The buckets of a region. A place is a bucket and the key of an object in it.

    Args:
        region: None is that of the environment.
    """

    def __init__(self, region: str | None) -> None:
        self._wires = opened(region, timeout=_TIMEOUT, s3=from_environment("s3"))

    async def write(self, place: Place, content: bytes) -> None:
        """Write an object, unless an earlier request has written it. Its key must belong to its content.

        Raises:
            StepFailed: it is not there, or :meth:`has` has taken its place.
        """
        answer = await self._insist(ObjectCall("PUT", *place, content, _CREATE), 412)
        if answer.status == 412 and await self._is_empty(place):
            raise StepFailed(f"{place[1]} was given up by another worker, because this one was too late")

    async def has(self, place: Place) -> bool:
        """Return whether an object was written. If not, an empty one takes its place, and it never will be.

        Raises:
            StepFailed: S3 cannot be reached, or refuses it.
        """
        answer = await self._insist(ObjectCall("PUT", *place, b"", _CREATE), 412)
        return answer.status == 412 and not await self._is_empty(place)

    def close(self) -> None:
        """Close the connections."""
        self._wires.close()

    async def _is_empty(self, place: Place) -> bool:
        answer = await self._insist(ObjectCall("GET", *place, None, _FIRST_BYTE), 416)
        return answer.status == 416 or not answer.body

    async def _insist(self, call: ObjectCall, other: int) -> ServiceAnswer:
        """Return an answer whose status is a success or ``other``."""
        for pause in _PAUSES:
            try:
                answer = await self._wires.ask_async(call)
            except StoreError as error:
                why: Exception | None = error
                text, passes = str(error), error.transient
            else:
                if answer.status < 300 or answer.status == other:
                    return answer
                why, text = None, f"{call.method} {call.key}: {code_of(answer)} ({message_of(answer)})"
                passes = answer.status >= 500 or answer.status in {409, 429}  # 409: another request for it runs
            if pause is None or not passes:
                raise StepFailed(f"bucket {call.bucket}: {text}") from why
            await asyncio.sleep(pause)
        raise AssertionError


_FULL: Final = 8 * 1024 * 1024  # bytes of an object before it is compressed
_MOST_LOOKS: Final = 100  # objects of earlier attempts


class S3Sink(SinkSettings):
    """Write messages as lines of JSON to objects in S3, each message once.

    A message is done when its object is in the bucket. Before it writes an object, onceward records the object's name
    in the record of each message. After a crash, onceward looks for that object. If it is missing, onceward writes an
    empty object there, so that a late request cannot write it any more. Then the message goes into another object. The
    bucket must have S3's conditional writes.

    Attributes:
        bucket: The bucket's name.
        prefix: How the objects' names begin, as in orders/.
        message: What is written.
        gzip: Whether to compress the objects.
        count: The most messages in an object. A number above `concurrency` has no effect, because only so many messages
            can wait.
        age: How long the first message of an object waits for others, at most.
        region: The region, if it is not that of the environment.
    """

    bucket: Text
    prefix: str = ""
    message: Expression = given(MESSAGE)
    gzip: bool = False
    count: Annotated[int, Meta(ge=1)] = 1000
    age: Seconds = given(Seconds("1s"))
    region: str | None = None

    @property
    def title(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def build(self, kit: "Kit") -> SinkAction:
        if not self.bucket.replace("-", "").replace(".", "").isalnum() or not self.bucket.isascii():
            kit.mistake("bucket", f"{self.bucket!r} is not the name of a bucket")
        buckets = Buckets(self.region)
        end = ".ndjson.gz" if self.gzip else ".ndjson"

        def place_of(name: str) -> Place:
            return self.bucket, f"{self.prefix}{name}{end}"

        async def write(place: Place, content: bytes) -> None:
            await buckets.write(place, gzip.compress(content, mtime=0) if self.gzip else content)

        grouping = ObjectGrouping(write, place_of, min(self.count, kit.built.model.concurrency), _FULL, self.age)
        kit.closing(buckets.close)

        async def take(message: PipelineMessage, call: "PipelineCall") -> None:
            line = msgspec.json.encode(self.message(message)) + b"\n"
            member = _Member(grouping, f"{call.key()} {call.claim.fence}", line)
            for number in range(_MOST_LOOKS):
                noted = await _noted(member, call, number)
                if member.group is not None:
                    await asyncio.shield(member.group.written)
                    return
                # Not where an object is today: a deploy can have changed the settings. A text is a note of the version before.
                if await buckets.has(place_of(noted) if isinstance(noted, str) else noted):
                    return
            raise RuntimeError(f"this message was in {_MOST_LOOKS} objects, none of which was written")

        return take


class _Member:
    """A message that joins a group when its step runs. If the step is recorded, it never does.

    Attributes:
        noted: a future, until its record has the name of the object.
    """

    def __init__(self, grouping: ObjectGrouping, token: str, line: bytes) -> None:
        self.token, self.line = token, line  # the token is its derived key with the fence of its claim
        self.noted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.group: ObjectGroup | None = None
        self._grouping = grouping

    async def joined(self) -> str | Place:  # how a record is read, too
        self.group = self._grouping.join(self)
        return await asyncio.shield(self.group.place)  # a message that is cancelled cancels no other


async def _noted(member: _Member, call: "PipelineCall", number: int) -> str | Place:
    """Return the place of the object that a message is in: that of an earlier attempt, or of a group that it joins now."""
    try:
        noted: str | Place = await call.claim.step_async((call.step, "object", number), _Member.joined, member)
    except BaseException as error:
        if member.group is not None:
            member.noted.set_exception(StepFailed(repr(error)))
            member.noted.exception()  # the group hears of it, if there is still one
        raise
    if member.group is not None:
        member.noted.set_result(None)
    return noted
