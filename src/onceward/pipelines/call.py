"""One delivery's way through a pipeline: what steps and sinks use beside the message."""

import asyncio
import contextvars
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from onceward.consumers.callers import Callers
from onceward.consumers.delivery import Delivery

if TYPE_CHECKING:
    from onceward.claim.claim import Claim, OnLapse
    from onceward.claim.held import HeldClaim
    from onceward.pipelines.messages import PipelineMessage

T = TypeVar("T")
_CALLERS: Final["WeakKeyDictionary[asyncio.AbstractEventLoop, Callers]"] = WeakKeyDictionary()


class StandIn(Protocol):
    """What takes the place of effects and sinks in ``onceward test`` and ``--dry-run``."""

    async def effect(self, title: str, message: "PipelineMessage", call: "PipelineCall") -> Any:
        """Stand for an effect, and return its result."""

    def sink(self, title: str, message: "PipelineMessage", call: "PipelineCall") -> None:
        """Take a message in the place of a sink."""


class PipelineCall:
    """One attempt at one delivery.

    Attributes:
        claim: the innermost claim: that of the guard that this part of the pipeline is in.
        delivery: what came.
        lapse: what it means if an attempt ended inside the step, and the errors that say that it was not made.
        step: the name of the effect or sink that runs: a text, or a tuple within ``each``.
        printed: what goes to the standard output when the claim is completed.
        unit: the title of the recorded step that runs.
        stand_in: takes the place of effects and sinks; None in earnest.
        writes: what is committed together with the claim's completion, for a ledger in DynamoDB (:meth:`Claim.transact`).
    """

    __slots__ = ("claim", "delivery", "lapse", "printed", "stand_in", "step", "unit", "writes")

    def __init__(self, claim: "Claim", delivery: Delivery, stand_in: StandIn | None = None) -> None:
        self.claim = claim
        self.delivery = delivery
        self.stand_in = stand_in
        self.step: object = ""
        self.unit = ""
        self.printed: list[object] = []
        self.writes: list[object] = []
        self.lapse: tuple[OnLapse, tuple[type[Exception], ...]] = ("retry", ())

    def under(self, claim: "Claim") -> "PipelineCall":
        """Return this call for what runs under an inner claim."""
        inner = PipelineCall(claim, self.delivery, self.stand_in)
        inner.printed, inner.unit = self.printed, self.unit
        return inner

    def within(
        self, step: object, on_lapse: "OnLapse" = "retry", not_made: tuple[type[Exception], ...] = ()
    ) -> "PipelineCall":
        """Return this call for one effect or sink."""
        inner = self.under(self.claim)
        inner.step, inner.lapse, inner.writes = step, (on_lapse, not_made), self.writes
        return inner

    async def ended(self, result: Any) -> Any:
        """Return the result of the claim's handler. If there are :attr:`writes`, it is recorded together with them."""
        return await self.claim.transact_async(self.writes, result) if self.writes else result

    def key(self, *parts: object) -> str:
        """Return the derived key of the step: the same on every attempt. Give it to a downstream that deduplicates.

        Args:
            *parts: what tells several requests of one step apart.
        """
        return self.claim.key(self.step, *parts)

    @property
    def follows(self) -> bool:
        """Whether an earlier attempt may have begun this step."""
        return cast("HeldClaim", self.claim).follows

    async def record(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Make a recorded step (:meth:`Claim.step_async`) under the step's name. ``on_lapse`` is what the file says.

        A later attempt gets the recorded result, and ``function`` does not run. It can be a coroutine function. Use a function
        of a module, not a closure: what is known of it is then kept.
        """
        on_lapse, not_made = self.lapse
        return await self.claim.step_async(self.step, function, *arguments, on_lapse=on_lapse, not_made=not_made)

    def send(
        self,
        address: str,
        data: object,
        *,
        delay: float | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Send a message through the outbox (:meth:`Claim.send`): it leaves exactly when the claim completes."""
        return self.claim.send(address, data, key=self.step, delay=delay, group=group, headers=headers)

    async def thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that blocks in a thread. It sees the claim by ``onceward.current()``."""
        loop = asyncio.get_running_loop()
        callers = _CALLERS.get(loop)
        if callers is None:
            callers = _CALLERS[loop] = Callers()
            weakref.finalize(loop, callers.close).atexit = False  # else each loop of a process would leave its threads
        context = contextvars.copy_context()
        return await callers.call(partial(context.run, function, *arguments))
