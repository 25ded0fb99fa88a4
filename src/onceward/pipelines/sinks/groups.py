"""Messages that are written together, and those that wait for them."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256

from onceward.pipelines.call import StepFailed

Write = Callable[[str, bytes], Awaitable[None]]


class ObjectGroup:
    """The messages of one object.

    Each member notes the object's name in its record before anything is written. So after a crash it knows where to look.

    Attributes:
        name: of the object; a future, until the group is closed.
        written: whether all is durable; a future.
    """

    def __init__(self, write: Write) -> None:
        loop = asyncio.get_running_loop()
        self.name: asyncio.Future[str] = loop.create_future()
        self.written: asyncio.Future[None] = loop.create_future()
        self.written.add_done_callback(_heard)
        self.size = 0
        self._write = write
        self._members: list[tuple[str, bytes]] = []
        self._noted = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self._members)

    def add(self, token: str, line: bytes) -> None:
        """Add a member before the group is closed. ``token`` is its derived key with the fence of its claim."""
        self._members.append((token, line))
        self.size += len(line)

    def close(self) -> None:
        """Give the group its name. No two groups have one: a member that comes again has another fence."""
        if not self.name.done():
            digest = sha256("\n".join(sorted(token for token, _ in self._members)).encode())
            self.name.set_result(digest.hexdigest()[:32])

    def note(self) -> None:
        """Count a member whose record has the name. After the last, the object is written."""
        self._noted += 1
        if self._noted == len(self._members) and not self.written.done():
            self._task = asyncio.create_task(self._run(), name="onceward-group")

    def fail(self, error: BaseException) -> None:
        """Write nothing: nobody can tell whether a member's record has the name."""
        if not self.written.done():
            failed = StepFailed(f"another message of this file could not be recorded: {error!r}")
            self.written.set_exception(failed)

    async def _run(self) -> None:
        try:
            await self._write(self.name.result(), b"".join(line for _, line in self._members))
        except BaseException as error:
            if not self.written.done():
                self.written.set_exception(error if isinstance(error, Exception) else StepFailed("it was stopped"))
            if not isinstance(error, Exception):
                raise
        else:
            if not self.written.done():
                self.written.set_result(None)


class ObjectGrouping:
    """Puts messages into groups, which are closed when they are full or old enough.

    Args:
        write: makes one object durable.
        count: members of a group, at most.
        size: bytes of a group, after which it is closed.
        age: seconds after its first member.
    """

    def __init__(self, write: Write, count: int, size: int, age: float) -> None:
        self._write, self._count, self._size, self._age = write, count, size, age
        self._open: ObjectGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def join(self, token: str, line: bytes) -> ObjectGroup:
        """Add a message, and return its group."""
        loop = asyncio.get_running_loop()
        group = self._open
        if group is None or group.name.done() or self._loop is not loop:
            group = self._open = ObjectGroup(self._write)
            self._loop = loop
            loop.call_later(self._age, group.close)
        group.add(token, line)
        if group.count >= self._count or group.size >= self._size:
            group.close()
        return group


def _heard(written: asyncio.Future[None]) -> None:
    """Take the error, of which asyncio would otherwise complain if no member waits any more."""
    if not written.cancelled():
        written.exception()
