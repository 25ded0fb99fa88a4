"""Once: opens a store and hands out guards, claims and transactions."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

from onceward.claim import CURRENT, Claim
from onceward.core.clock import Clock, boottime
from onceward.core.policy import Options, Policy
from onceward.errors import Completed
from onceward.guard import Answer, Guard
from onceward.keys import checked_name, ledger_key
from onceward.stores import open_store
from onceward.stores.contract import Store

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from onceward.codec import Codec
    from onceward.effects import TransactItem
    from onceward.inputs import Handler, KeySource
    from onceward.ledger import Ledger
    from onceward.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")

CLAIM_NAME = "claim"  # the namespace of keys that are claimed without a function

# Why a busy key cannot be passed over, by who asks for it.
_NO_SKIP_BLOCK: Final = "a with block cannot be skipped"
_NO_SKIP_ACQUIRE: Final = "acquire returns a claim and nothing else"
_NO_SKIP_TRANSACT: Final = "what transact returns could not tell whether the writes were made"


class Once:
    """Handlers guarded by one ledger.

    Args:
        store: a URL, such as ``sqlite:///orders.db`` (three slashes and a relative path, four and an absolute one) or
            ``memory:``, or a store object. Nothing is opened before the first use.
        name: the namespace of all keys; by default each function has its own.
        clock: the owner's clock, in seconds that only grow; for tests.
        **options: defaults for every guard, see :class:`onceward.Policy`.

    Raises:
        ValueError, TypeError: the URL or an option is not valid, or two options contradict each other.
    """

    def __init__(
        self, store: str | Store, *, name: str | None = None, clock: Clock = boottime, **options: Unpack[Options]
    ) -> None:
        self.store: Store = open_store(store) if isinstance(store, str) else store
        self._name = None if name is None else checked_name(name)
        self._clock = clock
        self.policy = _policy(Policy(), options)
        self._guards: WeakKeyDictionary[Callable[..., object], tuple[str, Guard]] = WeakKeyDictionary()

    def using(self, *, name: str | None = None, **options: Unpack[Options]) -> "Once":
        """Return a Once on the same store with other defaults, as in ``once.using(lease=5).run(key, function)``."""
        other = Once(self.store, name=self._name if name is None else name, clock=self._clock)
        other.policy = _policy(self.policy, options)
        return other

    # --- guarding functions ---------------------------------------------------------------------------------------

    def __call__(
        self,
        *,
        key: "KeySource",
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Guard a function or coroutine function, as in ``@once(key="order.id", lease=60)``.

        Args:
            key: a JMESPath expression over the arguments by name, or a callable given those of them that it names.
            fingerprint: the same, or True for all arguments: what must not change under one key.
            name: the namespace of the keys; default the function's module and qualified name.
            **options: see :class:`onceward.Policy`.

        Returns:
            A decorator. The decorated function has a method ``key_of(*args, **kwargs)`` that returns the key in the ledger.

        Raises:
            ValueError, TypeError: an option is not valid or does not fit the function. Raised when decorating.
        """
        policy = _policy(self.policy, options)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if isinstance(function, classmethod | staticmethod):
                return type(function)(decorate(function.__func__))
            return cast("Callable[P, R]", self._decorated(function, policy, key, fingerprint, name))

        return decorate

    def run(self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``function(*args, **kwargs)`` once for ``key``, in this thread, or return its recorded result.

        Args:
            key: str, int, UUID, bytes, or a tuple of them; unique among the calls of ``function``.
            function: the handler; its module and qualified name are the namespace of the key.
            *args: its arguments.
            **kwargs: as above.

        Raises:
            Busy, Mismatch, Parked, KeyMissing, LeaseLost, ResultUnavailable, ResultNotRecorded, StoreError: as their
                docs say.
        """
        name, guard = self._guard_of(function)
        return cast("R", guard.call(ledger_key(name, key), None, function, args, kwargs))

    @overload
    async def run_async(
        self, key: object, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def run_async(self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def run_async(
        self, key: object, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """As :meth:`run`, for a coroutine function (or a function that does not block)."""
        name, guard = self._guard_of(function, is_async=True)
        return await guard.call_async(ledger_key(name, key), None, function, args, kwargs)

    # --- claims in the hand ---------------------------------------------------------------------------------------

    def claim(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> "ClaimContext":
        """Return a context, for ``with`` or ``async with``, whose body runs once for ``key``.

        The key is completed when the body ends, with ``claim.complete(result)`` or with None, and given back when it
        raises. Of the options, ``cache`` means nothing here: a claim asks the ledger each time.

        Raises:
            Completed: from the ``with`` statement: the body has run before; its result is in the error's ``result``.
            Busy, Parked, Reentrant, StoreError: from the ``with`` statement.
            ValueError: ``on_busy="skip"``, for a ``with`` block cannot be skipped.
        """
        return ClaimContext(self._claim_guard(options), ledger_key(self._claim_name(name), key))

    def acquire(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> Claim:
        """Claim ``key`` and return the claim, which you end with ``complete``, ``release`` or ``park``.

        Nothing renews it but ``claim.extend()``; when its lease is over, others may take the key over. You decide what an
        error means, so of the options ``on_error`` and ``final`` mean nothing here, nor do ``heartbeat`` and ``cache``.

        Raises:
            Completed, Busy, Parked, StoreError: as for :meth:`claim`.
            ValueError: ``on_busy="skip"``, for this returns a claim or raises.
        """
        full = ledger_key(self._claim_name(name), key)
        return _claimed(full, self._claim_guard(options, _NO_SKIP_ACQUIRE, heartbeat=False).enter(full, None))

    async def acquire_async(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> Claim:
        """As :meth:`acquire`, for a coroutine; end it with ``complete_async``, ``release_async`` or ``park_async``."""
        full = ledger_key(self._claim_name(name), key)
        return _claimed(
            full, await self._claim_guard(options, _NO_SKIP_ACQUIRE, heartbeat=False).enter_async(full, None)
        )

    def transaction(
        self, key: object, connection: "sqlite3.Connection", *, name: str | None = None, **options: Unpack[Options]
    ) -> "Transaction":
        """Return a context whose writes on ``connection`` commit together with the record: both, or neither.

        The whole body is one transaction, begun at once (``BEGIN IMMEDIATE``), so a concurrent duplicate waits for it
        and a crash leaves nothing behind. Do slow work before it, or use ``claim.transaction(connection)``.

        Args:
            key: as for :meth:`run`.
            connection: to the ledger's own SQLite file, in no transaction.
            name: the namespace of the key.
            **options: see :class:`onceward.Policy`. ``heartbeat``, ``cache`` and seconds of ``on_busy`` mean nothing here,
                for nobody else can write to the file meanwhile.

        Raises:
            Completed, Busy, Parked, StoreError: from the ``with`` statement.
            ValueError: the connection is to another file, or in a transaction; or ``on_busy="skip"``, for a ``with`` block
                cannot be skipped.
        """
        from onceward.transaction import Transaction  # noqa: PLC0415 - SQLite users only

        return Transaction.of_key(
            self._claim_guard(options, heartbeat=False), ledger_key(self._claim_name(name), key), connection
        )

    def transact(
        self,
        key: object,
        writes: "Sequence[TransactItem]",
        result: object = None,
        *,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> object:
        """Make ``writes`` to DynamoDB once for ``key``: claim, effect and completion in a single request.

        For handlers that are DynamoDB writes and nothing else. It commits all of them with the record, or nothing, so
        there is no state in between for a crash to leave behind.

        Args:
            key: as for :meth:`run`.
            writes: as for :meth:`Claim.transact`.
            result: what is returned now and to duplicates.
            name: the namespace of the key.
            **options: see :class:`onceward.Policy`. There is no handler, so ``heartbeat``, ``on_error``, ``final`` and
                ``cache`` mean nothing here.

        Returns:
            ``result``, or for a duplicate the result that was recorded.

        Raises:
            EffectRefused: the condition of one of the writes does not hold; nothing was written, and the key is free.
            Busy, Parked, ResultUnavailable, StoreError: as their docs say.
            TypeError, ValueError: the ledger is not in DynamoDB, or a write has not the right form; or ``on_busy="skip"``,
                for what is returned could not tell whether the writes were made.
        """
        from onceward.effects import committing  # noqa: PLC0415 - DynamoDB users only

        commit = committing(self.store, writes)
        guard = self._claim_guard(options, _NO_SKIP_TRANSACT, heartbeat=False)
        return guard.commit(ledger_key(self._claim_name(name), key), result, commit)

    async def transact_async(
        self,
        key: object,
        writes: "Sequence[TransactItem]",
        result: object = None,
        *,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> object:
        """As :meth:`transact`, for a coroutine."""
        from onceward.effects import committing  # noqa: PLC0415 - DynamoDB users only

        commit = committing(self.store, writes)
        guard = self._claim_guard(options, _NO_SKIP_TRANSACT, heartbeat=False)
        return await guard.commit_async(ledger_key(self._claim_name(name), key), result, commit)

    # --- around it ------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> "Ledger":
        """The records, for people: list, show, clear, park and unpark them."""
        from onceward.ledger import Ledger  # noqa: PLC0415 - for operators only

        return Ledger(self.store)

    def close(self) -> None:
        """Close the store's connections. The next use opens them again."""
        self.store.close()

    # --- making guards --------------------------------------------------------------------------------------------

    def _decorated(
        self,
        function: Callable[..., object],
        policy: Policy,
        key: "KeySource",
        fingerprint: "KeySource | bool | None",
        name: str | None,
    ) -> Callable[..., object]:
        from functools import wraps  # noqa: PLC0415 - what only decorating needs is loaded then

        from onceward import inputs  # noqa: PLC0415 - as above

        handler = inputs.describe(function)
        read = inputs.Inputs(function, key, fingerprint, handler.parameter)
        prefix = self._named(name, handler)
        guard = Guard(self.store, policy, self._clock, _codec(function, handler), handler.parameter)

        def key_of(*args: object, **kwargs: object) -> str:
            """Return the key in the ledger of a call with these arguments."""
            return ledger_key(prefix, read.read(args, kwargs)[0])

        if handler.is_async:

            @wraps(function)
            async def call_async(*args: object, **kwargs: object) -> object:
                found, print_ = read.read(args, kwargs)
                return await guard.call_async(ledger_key(prefix, found), print_, function, args, kwargs)

            wrapper: Callable[..., object] = call_async
        else:

            @wraps(function)
            def call(*args: object, **kwargs: object) -> object:
                found, print_ = read.read(args, kwargs)
                return guard.call(ledger_key(prefix, found), print_, function, args, kwargs)

            wrapper = call
        wrapper.__signature__ = read.signature  # type: ignore[attr-defined]  # inspect reads it
        wrapper.key_of = key_of  # type: ignore[attr-defined]  # documented at __call__
        return wrapper

    def _guard_of(self, function: Callable[..., object], *, is_async: bool = False) -> tuple[str, Guard]:
        """Return the namespace and guard of a function that is run without a decorator; looked at once per function."""
        inner = getattr(function, "__func__", function)
        try:
            return self._guards[inner]
        except (KeyError, TypeError):
            pass
        from onceward import inputs  # noqa: PLC0415 - what only a first run needs is loaded then

        handler = inputs.describe(function)
        if handler.is_async and not is_async:
            raise TypeError(
                f"{handler.name}() is a coroutine function: await once.run_async(...) instead of once.run(...)"
            )
        guard = Guard(self.store, self.policy, self._clock, _codec(function, handler), handler.parameter)
        made = (self._named(None, handler), guard)
        try:
            self._guards[inner] = made
        except TypeError:
            pass  # an object that cannot be weakly referenced is looked at each time
        return made

    def _claim_guard(self, options: Options, no_skip: str = _NO_SKIP_BLOCK, *, heartbeat: bool = True) -> Guard:
        policy = _policy(self.policy, options)
        if policy.on_busy == "skip":
            raise ValueError(f'on_busy="skip" is for functions: {no_skip}, so catch Busy instead')
        return Guard(self.store, policy if heartbeat else policy._replace(heartbeat=0), self._clock)

    def _claim_name(self, name: str | None) -> str:
        return (self._name or CLAIM_NAME) if name is None else checked_name(name)

    def _named(self, name: str | None, handler: "Handler") -> str:
        if name is not None:
            return checked_name(name)
        if self._name is not None:
            return self._name
        if handler.name is None:
            raise ValueError("a lambda has no name of its own, so its keys could meet another's: give name='...'")
        return checked_name(handler.name)


class ClaimContext:
    """What ``once.claim(key)`` returns: enter it with ``with`` or ``async with`` to hold the claim."""

    def __init__(self, guard: Guard, key: str) -> None:
        self._guard = guard
        self._key = key
        self._claim: Claim | None = None

    def __enter__(self) -> Claim:
        return self._entered(self._guard.enter(self._key, None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim = self._left()
        if error is None:
            self._guard.finish(claim, None)
        elif isinstance(error, Exception):
            self._guard.fail(claim, error)
        else:
            self._guard.drop(claim)

    async def __aenter__(self) -> Claim:
        return self._entered(await self._guard.enter_async(self._key, None))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim = self._left()
        if error is None:
            await self._guard.finish_async(claim, None)
        elif isinstance(error, Exception):
            await self._guard.fail_async(claim, error)
        else:
            self._guard.drop(claim)

    def _entered(self, entry: Claim | Answer) -> Claim:
        self._claim = _claimed(self._key, entry)
        CURRENT.set(self._claim)
        return self._claim

    def _left(self) -> Claim:
        claim = self._claim
        if claim is None:
            raise RuntimeError("this once.claim(...) was not entered")
        self._claim = None
        CURRENT.set(claim.outer)
        return claim


def _claimed(key: str, entry: Claim | Answer) -> Claim:
    if isinstance(entry, Answer):
        raise Completed(key, entry.value)
    return entry


def _policy(defaults: Policy, options: Options) -> Policy:
    unknown = options.keys() - set(Policy._fields)
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(Policy._fields)}")
    return defaults._replace(**options).checked()


def _codec(function: Callable[..., object], handler: "Handler") -> "Codec":
    from onceward.codec import Codec, LateCodec  # noqa: PLC0415 - msgspec is loaded with the first guard

    return LateCodec(function) if handler.hints_late else Codec(handler.annotation)
