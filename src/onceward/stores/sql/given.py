"""The caller's own connections and pools, blocking or asynchronous, as a ledger runs its statements on them.

They serve blocking callers and coroutines alike: a blocking one serves coroutines in threads, and an asynchronous one serves
blocking calls, such as the heartbeat's, on the event loop that used it last.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from copy import copy
from typing import Any, Generic, Self

from onceward.stores.sql.queries import Row, Ts
from onceward.stores.sql.refusals import Broken


class Owned:
    """Belongs to the process that made it. A child that was forked must make its own.

    Args:
        timeout: seconds for one request.
    """

    def __init__(self, timeout: float) -> None:
        self._process = os.getpid()
        self.timeout = timeout

    def patient(self, seconds: float) -> Self:
        """Return the same, with another limit of time for a request."""
        other = copy(self)
        vars(other)["timeout"] = seconds
        return other

    def check_own(self) -> None:
        """Raise ValueError in a forked child."""
        if os.getpid() != self._process:
            raise ValueError("this process was forked after the connection was made: make its own Once in each process")

    def close(self) -> None:
        """Leave it open: it is its owner's."""


class Blocking(Owned, ABC, Generic[*Ts]):
    """Serves coroutines in threads."""

    @abstractmethod
    def fetch(self, *asked: *Ts) -> Sequence[Row]:
        """Run one request's statements and return their rows."""

    def run(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """Do one request, and return its reply."""
        return request.reply(self.fetch(*asked(request)))

    async def run_async(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """As :meth:`run`, in a thread."""
        return await asyncio.to_thread(self.run, request, asked)


class Awaiting(Owned, ABC, Generic[*Ts]):
    """Serves blocking calls on the event loop that it was last used in.

    Args:
        timeout: seconds for one request.
        instead: what else can be given to handlers that are not asynchronous.
    """

    def __init__(self, timeout: float, instead: str) -> None:
        super().__init__(timeout)
        self._instead = instead
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """Do one request, from any thread but the loop's own, and return its reply."""
        self.check_own()
        loop = self._loop
        if loop is None or not loop.is_running():
            raise ValueError(
                "this connection is asynchronous, and no event loop is running that it was used in: for handlers that are not "
                f"asynchronous, give {self._instead}"
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise ValueError(
                "this connection is asynchronous, and its event loop would wait for itself: await what has a form to await, "
                "or give a URL"
            )
        asking = self.run_async(request, asked)
        try:
            answer = asyncio.run_coroutine_threadsafe(asking, loop)
        except RuntimeError as error:  # the loop was closed just now
            asking.close()
            raise Broken(str(error)) from error
        try:
            return answer.result(2 * self.timeout)
        except (TimeoutError, CancelledError) as error:
            answer.cancel()
            raise Broken(f"its event loop gave no answer within {2 * self.timeout:g} s") from error

    async def run_async(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """Do one request, and return its reply."""
        self.check_own()
        self._loop = asyncio.get_running_loop()
        return request.reply(await self.served(*asked(request)))

    @abstractmethod
    async def served(self, *asked: *Ts) -> Sequence[Row]:
        """Run one request's statements on the running loop."""
