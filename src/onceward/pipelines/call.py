"""A message on its way through a pipeline, and what steps and sinks use beside it."""

import asyncio
import contextvars
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from onceward.claim.claim import Claim, OnLapse
from onceward.consumers.callers import Callers
from onceward.consumers.delivery import Delivery


class PipelineMessage(NamedTuple):
    """A message as a step sees it. Steps make a new one, and never change the data in place.

    Attributes:
        data: its data as it is now: what JSON can hold, or bytes.
        meta: where it comes from: ``source``, ``id``, ``key``, ``group``, ``destination`` and ``raw`` of its delivery.
        at: its numbers in the lists that it was taken from (``each``); it is part of the names of its steps.
    """

    data: Any
    meta: dict[str, object]
    at: tuple[int, ...] = ()

    def with_data(self, data: object) -> "PipelineMessage":
        """Return it with other data."""
        return self._replace(data=data)

    def with_field(self, path: str, value: object) -> "PipelineMessage":
        """Return the message with a value in a field, such as ``payment.receipt``. Missing parent objects are added.

        Raises:
            ValueError: something on the way is no object.
        """
        return self._replace(data=_put(self.data, path.split("."), value, path))

    def without_field(self, path: str) -> "PipelineMessage":
        """Return it without a field. A field that it does not have is ignored."""
        return self._replace(data=_cut(self.data, path.split(".")))


def text_of(value: object) -> str:
    """Return a text as it is, and all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def content_of(value: object) -> tuple[bytes, str]:
    """Return bytes and texts as they are, and all else as JSON; and the media type."""
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    return text_of(value).encode(), "text/plain; charset=utf-8" if isinstance(value, str) else "application/json"


def _put(data: object, names: list[str], value: object, path: str) -> object:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ValueError(f"{path} cannot be put into {type(data).__name__}: only an object has fields")
    name, *rest = names
    return {**data, name: _put(data.get(name), rest, value, path) if rest else value}


def _cut(data: object, names: list[str]) -> object:
    name, *rest = names
    if not isinstance(data, dict) or name not in data:
        return data
    if rest:
        return {**data, name: _cut(data[name], rest)}
    return {other: value for other, value in data.items() if other != name}


T = TypeVar("T")
_CALLERS: Final["WeakKeyDictionary[asyncio.AbstractEventLoop, Callers]"] = WeakKeyDictionary()


# None drops the message.
StepAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[PipelineMessage | None]]
# Returns the result of an effect: what JSON can hold.
EffectAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[Any]]


class StepFailed(Exception):
    """A step failed. Its text says why."""


class StepNotMade(StepFailed):
    """A step failed, and its effect was certainly not made. With ``on_lapse: park``, the key can then be retried."""


class StandIn(Protocol):
    """What takes the place of effects and sinks in ``onceward test`` and ``--dry-run``."""

    async def effect(self, title: str, message: "PipelineMessage", call: "PipelineCall") -> Any:
        """Stand for an effect, and return its result."""

    def sink(self, title: str, message: "PipelineMessage", call: "PipelineCall") -> None:
        """Take a message in the place of a sink."""


class PipelineCall(msgspec.Struct, eq=False):
    """One attempt at one delivery.

    Attributes:
        claim: the innermost claim: that of the guard that this part of the pipeline is in.
        delivery: what came.
        on_lapse: what it means if an attempt ended inside the step.
        step: the name of the effect or sink that runs: a text, or a tuple within ``each``.
        printed: what goes to the standard output when the claim is completed.
        unit: the title of the recorded step that runs.
        stand_in: replaces effects and sinks in a dry run or a test; else None.
        writes: what is committed together with the claim's completion, for a ledger in DynamoDB (:meth:`Claim.transact`).
    """

    claim: Claim
    delivery: Delivery
    stand_in: StandIn | None = None
    step: object = ""
    unit: str = ""
    on_lapse: OnLapse = "retry"
    printed: list[object] = []
    writes: list[object] = []

    def under(self, claim: Claim) -> "PipelineCall":
        """Return this call for what runs under an inner claim."""
        return PipelineCall(claim, self.delivery, self.stand_in, unit=self.unit, printed=self.printed)

    def within(self, step: object, on_lapse: OnLapse = "retry") -> "PipelineCall":
        """Return this call for one effect or sink."""
        return msgspec.structs.replace(self, step=step, on_lapse=on_lapse)

    async def ended(self, result: Any) -> Any:
        """Return the result of the claim's handler. If there are :attr:`writes`, it is recorded together with them."""
        return await self.claim.transact_async(self.writes, result) if self.writes else result

    def key(self, *parts: object) -> str:
        """Return the derived key of the step: the same on every attempt. Give it to a downstream that deduplicates.

        Args:
            *parts: what tells several requests of one step apart.
        """
        return self.claim.key(self.step, *parts)

    async def record(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Make a recorded step (:meth:`Claim.step_async`) under the step's name. ``on_lapse`` is what the file says.

        A later attempt gets the recorded result, and ``function`` does not run. It can be a coroutine function. Use a function
        of a module, not a closure: what is known of it is then kept.
        """
        not_made = (StepNotMade,) if self.on_lapse == "park" else ()
        return await self.claim.step_async(self.step, function, *arguments, on_lapse=self.on_lapse, not_made=not_made)

    async def thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that blocks in a thread. It sees the claim by ``onceward.current()``."""
        loop = asyncio.get_running_loop()
        callers = _CALLERS.get(loop)
        if callers is None:
            callers = _CALLERS[loop] = Callers()
            weakref.finalize(loop, callers.close).atexit = False  # else each loop of a process would leave its threads
        context = contextvars.copy_context()
        return await callers.call(partial(context.run, function, *arguments))
