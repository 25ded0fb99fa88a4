"""What a queue does with one message: it delivers it again until its consumer is done with it, and then once too often."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from onceward.claim.lease import CURRENT
from onceward.core.drivers import Steps, drive, drive_async
from onceward.errors import OncewardError, Parked
from onceward.testing.crash_report import describe_answer
from onceward.testing.crash_run import CrashRun
from onceward.testing.stage import ACTORS, Act

MOST: Final = 10  # deliveries of one message


class Delivered(NamedTuple):
    """How one delivery ended. Without an error, and if the worker was not killed, ``answer`` is what it returned."""

    answer: object = None
    error: Exception | None = None
    killed: bool = False


Deliveries = Steps[Delivered]


class Redelivery:
    """The deliveries of one message in one run of a crash test.

    Args:
        crash: the run.
        call: makes one delivery.
    """

    def __init__(self, crash: CrashRun, call: Callable[[], Any]) -> None:
        self._crash = crash
        self._call = call
        self._awaits = False
        crash.deliver_by(Act(self._meanwhile, self._meanwhile_async))

    def deliver(self) -> Delivered:
        """Deliver until it is over, and once more; raises AssertionError if it is never over."""
        return drive(self._all(), ACTORS)

    async def deliver_async(self) -> Delivered:
        """Like :meth:`deliver`, in the running event loop."""
        return await drive_async(self._all(), ACTORS)

    def _meanwhile(self) -> None:
        """Let another worker get the message, while one is paused in this thread."""
        if asyncio._get_running_loop() is None:  # the documented one raises where there is none
            self._rest()
            return
        thread = threading.Thread(target=lambda: _elsewhere().run(self._rest))  # no second loop can run in this one
        thread.start()
        thread.join()

    async def _meanwhile_async(self) -> None:
        """Like :meth:`_meanwhile`, while one is paused in this event loop."""
        if self._awaits:
            await drive_async(self._until_over("meanwhile, another worker"), ACTORS)
            return
        # What blocks must not block this loop: it may need it.
        await asyncio.get_running_loop().run_in_executor(None, lambda: _elsewhere().run(self._rest))

    def _rest(self) -> Delivered:
        return drive(self._until_over("meanwhile, another worker"), ACTORS)

    # --- which deliveries there are -----------------------------------------------------------------------------------

    def _all(self) -> Deliveries:
        ended = yield from self._until_over("delivered")
        self._crash.is_over()
        yield from self._delivery("delivered once too often")
        return ended

    def _until_over(self, title: str) -> Deliveries:
        for _ in range(MOST):
            before = self._crash.strikes
            ended = yield from self._delivery(title)
            if ended.killed:
                before = self._crash.strikes
                ended = yield from self._delivery("redelivered at once")
            if self._is_over(ended, is_struck=before != self._crash.strikes):
                return ended
            self._crash.lapse()
            title = "redelivered after the lease"
        raise AssertionError(f"the delivery is not over after {MOST} tries\n\n{self._crash.story}") from ended.error

    def _delivery(self, title: str) -> Deliveries:
        self._crash.begin(title)
        ended: Delivered = yield Act(self._delivered, self._delivered_async)
        how = "killed" if ended.killed else describe_answer(ended.answer, ended.error)
        self._crash.story.note(f"→ {how}")
        return ended

    def _is_over(self, ended: Delivered, *, is_struck: bool) -> bool:
        if ended.killed:
            return False
        if ended.error is None:
            return self._crash.over(ended.answer)
        if isinstance(ended.error, Parked):
            return True
        # If nothing is left to do, the exception is the recorded outcome.
        return not (is_struck or isinstance(ended.error, OncewardError)) and self._crash.is_settled()

    # --- how one is made ----------------------------------------------------------------------------------------------

    def _delivered(self) -> Delivered:
        def make() -> object:
            answer = self._call()
            self._awaits = hasattr(answer, "__await__")
            return asyncio.run(_awaiting(answer)) if self._awaits else answer

        try:
            return self._ended(_elsewhere().run(make))
        except BaseException as error:
            return self._ended(error=error)

    async def _delivered_async(self) -> Delivered:
        async def make() -> object:
            answer = self._call()
            self._awaits = hasattr(answer, "__await__")
            return await answer if self._awaits else answer

        try:
            return self._ended(await asyncio.get_running_loop().create_task(make(), context=_elsewhere()))
        except BaseException as error:
            return self._ended(error=error)

    def _ended(self, answer: object = None, error: BaseException | None = None) -> Delivered:
        if self._crash.is_dead:
            return Delivered(killed=True)
        if error is not None and not isinstance(error, Exception):
            raise error
        return Delivered(answer, error)


async def _awaiting(answer: Any) -> object:
    return cast("object", await answer)


def _elsewhere() -> contextvars.Context:
    """Return a context in which no claim is held."""
    context = contextvars.copy_context()
    context.run(CURRENT.set, None)
    return context
