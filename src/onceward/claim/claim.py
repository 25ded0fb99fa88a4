"""The claim and its transactions, as a handler sees them. ``lease.py``, ``ends.py``, ``held.py`` and ``transaction.py`` implement them."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from onceward.core.drivers import Steps
from onceward.core.protocol import Outcome, parked, released
from onceward.core.record import Record
from onceward.keys.ledger_keys import derived_key

OnLapse = Literal["retry", "park"] | Callable[..., object]
T = TypeVar("T")
C = TypeVar("C")


class Claim:
    """The right to run the handler for one key.

    You get one from :func:`onceward.current`, ``with once.claim(key)`` or ``once.acquire(key)``, or in a handler's
    parameter that is annotated with this class.

    Attributes:
        record: the record as this claim last wrote it; ``record.key`` is the key in the ledger.
    """

    __slots__ = ("__weakref__", "record")  # not an ABC, because its isinstance() is slow

    record: Record
    _chained: Callable[[], Any]  # returns its HandlerSteps
    _send: Callable[..., str]
    _completing: Callable[..., Callable[[], Steps[None]]]
    _leaving: Callable[[Callable[[str | None], Outcome], str | None, str], Callable[[], Steps[None]]]
    _settle: Callable[[Callable[[], Steps[None]]], None]
    _settle_async: Callable[[Callable[[], Steps[None]]], Awaitable[None]]

    @property
    def fence(self) -> int:
        """The fencing token, larger than in every earlier claim on this key. Pass it to a downstream that checks it."""
        return self.record.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt on the key, from 1."""
        return self.record.attempts

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether the lease is over for this worker, which is before anyone can take over."""

    @property
    @abstractmethod
    def remaining(self) -> float:
        """Seconds of lease left without another renewal; 0 when it is over."""

    def key(self, *parts: object) -> str:
        """Return a key derived from this claim's: a UUID that is the same on every attempt.

        Pass it to a downstream that takes idempotency keys.

        Args:
            *parts: the purpose of the downstream call, as in ``claim.key("refund")``; str, int, UUID, bytes or tuples.
        """
        return derived_key(self.record.key, parts)

    @abstractmethod
    def extend(self, seconds: float | None = None) -> None:
        """Renew the lease now.

        Args:
            seconds: least time the lease must last from now; None is the guard's lease. A renewal never shortens a lease.

        Raises:
            LeaseLost: the key has gone on without this worker.
            ForkedClaim: this process was forked from the one that made the claim.
            StoreError: the store could not be reached; the lease is as before.
        """

    @abstractmethod
    async def extend_async(self, seconds: float | None = None) -> None:
        """Like :meth:`extend`, for a coroutine."""

    def step(
        self,
        name: object,
        function: Callable[..., T],
        /,
        *args: object,
        on_lapse: OnLapse = "retry",
        not_made: tuple[type[Exception], ...] = (),
        **kwargs: object,
    ) -> T:
        """Make a part of the handler's work once, also over several attempts on the key.

        The result of ``function(*args, **kwargs)`` is recorded before this returns. A later attempt gets it back, and the
        function does not run. The write renews the lease, too. Arguments are not compared. If the effect is in the ledger's
        own database, use :meth:`step_transaction`.

        Args:
            name: names the step, once in each attempt: a str, or a tuple such as ``("mail", n)`` in a loop.
            *args: the function's arguments.
            **kwargs: likewise, by name: any but ``on_lapse`` and ``not_made``.
            function: makes the effect. Its return annotation says how its result is stored, as a handler's does.
            on_lapse: what to do if an attempt ended inside this step, so that nobody knows whether it was made. "retry"
                runs it again; give the downstream ``claim.key(name)``, which is the same on each attempt. "park" parks the
                key for a person; it costs a second write, and an exception of the function parks the key, too. Or give
                a function that asks the downstream. It gets ``claim.key(name)`` and the arguments, and returns
                ``onceward.Made(result)`` or ``onceward.NOT_MADE``. Only a downstream that deduplicates or fences closes
                the window, because a request of a dead worker may still arrive.
            not_made: for "park": exceptions that say that the step was not made, so that the key can be retried.

        Returns:
            The function's result, or the recorded one.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StepNotRecorded: the step was made, and could not be recorded. Let this error go on.
            Parked: the step must not run again. The key is parked when the handler ends, whatever it returns.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before, or its record has no room for one more step.
            StoreError: the note that a step begins could not be written; it did not run.
            TypeError, ValueError: an argument is wrong, or two steps of an attempt have one name. Nothing ran.
        """
        chain = self._chained()
        return cast("T", chain.run(chain.step(name, function, args, kwargs, on_lapse, not_made, awaited=False)))

    async def step_async(
        self,
        name: object,
        function: Callable[..., Awaitable[T] | T],
        /,
        *args: object,
        on_lapse: OnLapse = "retry",
        not_made: tuple[type[Exception], ...] = (),
        **kwargs: object,
    ) -> T:
        """Like :meth:`step`, for a coroutine. It awaits what ``function`` and ``on_lapse`` return, if that can be awaited."""
        chain = self._chained()
        result = await chain.run_async(chain.step(name, function, args, kwargs, on_lapse, not_made, awaited=True))
        return cast("T", result)

    def send(
        self,
        target: str,
        message: object,
        *,
        key: object = None,
        delay: float | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Send a message if, and only if, this claim is completed.

        The write that completes the key records the message. It is sent right after that, without delaying the answer. After a crash, a
        relay or a duplicate sends it. If the handler fails, nothing is sent. The messages of a key
        keep their order. A message can be sent again, always with the same idempotency key, so that its consumer takes it once.

        Args:
            target: where it goes, such as ``sqs:orders`` or ``https://shop.example/hooks`` (docs/reference/outbox.md).
            message: its body: text as it is, all else as JSON.
            key: names it among this handler's messages to the target; by default they are numbered.
            delay: seconds before it can be received, if the target can do that.
            group: the messages of one group keep their order at the target, if it can do that.
            headers: text by name, if the target can carry it.

        Returns:
            Its idempotency key.

        Raises:
            ValueError, TypeError: the target is unknown, or can never take this message, or the message cannot be encoded or
                sealed. Or two messages have one key, the messages of this handler take more than 64 KiB, or this ledger cannot do that.
            StoreError: the ledger must be prepared first, as the error says. Only a process's first message checks
                this.
            LeaseLost: the key has gone on without this worker.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before, or you call it within a step. A later attempt does not run that
                step again, so its message would be lost.
        """
        return self._send(target, message, key=key, delay=delay, group=group, headers=headers)

    def complete(self, result: object = None) -> None:
        """Record ``result`` for good. Duplicates get it from now on.

        Raises:
            LeaseLost: the key has gone on without this worker; nothing was recorded.
            ResultNotRecorded: the store refused the result, or was unreachable for two leases.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before.
        """
        self._settle(self._completing(result))

    async def complete_async(self, result: object = None) -> None:
        """Like :meth:`complete`, for a coroutine."""
        await self._settle_async(self._completing(result))

    def release(self, error: str | None = None) -> None:
        """Give the key back for a retry. The record keeps ``error`` for a person to read.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StoreError: the store was unreachable until the lease was over, or for two leases while it was renewed.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before, or a step of it still runs, or it succeeded and could not be
                recorded.
        """
        self._settle(self._leaving(released, error, "release it"))

    async def release_async(self, error: str | None = None) -> None:
        """Like :meth:`release`, for a coroutine."""
        await self._settle_async(self._leaving(released, error, "release it"))

    def park(self, reason: str | None = None) -> None:
        """Stop retrying the key until an operator clears or unparks it. Raises the errors of :meth:`release`."""
        self._settle(self._leaving(parked, reason, "park it"))

    async def park_async(self, reason: str | None = None) -> None:
        """Like :meth:`park`, for a coroutine."""
        await self._settle_async(self._leaving(parked, reason, "park it"))

    @abstractmethod
    def transaction(self, connection: C) -> "Transaction[C]":
        """Return a context whose writes on ``connection`` commit together with this claim's completion.

        Do slow work before you enter it: an open context holds the write lock of an SQLite file, or the key's row.

        Args:
            connection: your own, to the ledger's database, in no transaction; as for :meth:`onceward.Once.transaction`.

        Raises:
            TypeError: this ledger cannot do that; the message names ledgers that can.
        """

    @abstractmethod
    def step_transaction(self, name: object, connection: C) -> "Transaction[C]":
        """Return a context whose writes on ``connection`` commit together with a step: both, or neither.

        The effect is made once, whatever crashes, and the handler goes on after it. Set ``result`` in the body. While the
        context is open, no other step can begin.

        Args:
            name: as for :meth:`step`.
            connection: as for :meth:`transaction`.

        Raises:
            StepMade: from the ``with`` statement: an earlier attempt has made it; its result is in the error's ``result``.
                Catch it around the ``with`` statement, and go on.
            LeaseLost: from the ``with`` statement, or at its end: the key has gone on without this worker. Nothing was
                committed.
            StoreError: nothing was committed, or the answer to the commit was lost. After a lost answer, no later step
                begins, and the next attempt reads whether the step was committed.
            Parked, ForkedClaim, OncewardError: as for :meth:`step`.
            TypeError, ValueError: as for :meth:`onceward.Once.transaction`.
        """

    def transact(self, writes: Sequence[object], result: T = None) -> T:  # type: ignore[assignment]  # T is NoneType then
        """Commit ``writes`` and this claim's completion: all of them, or nothing. For ledgers in DynamoDB.

        Do it last, and return its result. If this worker has lost its claim, the writes are refused too.

        Args:
            writes: up to 99, as in boto3's ``transact_write_items(TransactItems=writes)``: each a dict of one of Put,
                Update, Delete and ConditionCheck, on any tables of the ledger's region, with typed values ``{"S": "..."}``.
            result: what duplicates get.

        Returns:
            ``result``.

        Raises:
            EffectRefused: the condition of a write does not hold. You still have the claim: complete, release or park it,
                or let the error go on to give the key back.
            LeaseLost: the key has gone on without this worker.
            StoreError: the store refused the request, or was unreachable until the lease was over. In the second case, the
                next delivery finds out whether the writes were made.
            TypeError, ValueError: this ledger cannot do that, or a write has another form.
        """
        self._settle(self._completing(result, writes))
        return result

    async def transact_async(self, writes: Sequence[object], result: T = None) -> T:  # type: ignore[assignment]  # as above
        """Like :meth:`transact`, for a coroutine."""
        await self._settle_async(self._completing(result, writes))
        return result


class Transaction(Generic[C]):
    """A transaction that ends with the completion of a key, or with a step. Enter it with ``with``, or ``async with`` for an async connection.

    Attributes:
        connection: where the body writes its effect. The body must not commit or roll back.
        result: what duplicates get, or later attempts of a step; set it in the body. After ``StepMade``, it is what was recorded.
    """

    connection: C
    result: object = None

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """The claim. Its ``fence``, ``attempt`` and ``key()`` are useful in the body."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
