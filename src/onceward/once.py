"""Once: opens a store and hands out guards, claims and transactions."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, Unpack, cast, overload

from onceward.batch.many_keys import ManyKeys
from onceward.claim.factory import GuardFactory, policy_of
from onceward.claim.unclaimed import Unclaimed
from onceward.core.arguments import check_type
from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import Options, Policy
from onceward.core.urls import shown_url
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.observers import UNOBSERVED, Observers, checked_observers
from onceward.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.claim.claim import Claim, Transaction
    from onceward.claim.context import ClaimContext
    from onceward.claim.decorated import Decorator
    from onceward.claim.replays import CallOutcome
    from onceward.keys.reading import KeySource
    from onceward.observe.events import Observer
    from onceward.stores.contract import Store
    from onceward.stores.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C")

# Why each caller cannot skip a busy key.
_NO_SKIP_BLOCK: Final = "a with block cannot be skipped"
_NO_SKIP_ACQUIRE: Final = "acquire returns a claim and nothing else"
_NO_SKIP_TRANSACT: Final = "what transact returns could not tell whether the writes were made"


class Once(ManyKeys, Unclaimed):
    """Handlers guarded by one ledger.

    Args:
        store: a URL, such as ``sqlite:///orders.db`` (three slashes and a relative path, four and an absolute one) or
            ``memory:``, or a store object. Nothing is opened before the first use.
        name: the namespace of all keys; by default each function has its own.
        clock: the owner's clock, in seconds that only grow; for tests.
        observe: callables that get each event of this Once and of its store's requests (docs/how-to/observing.md). They run in the
            thread of the call, so they must be quick.
        **options: defaults for every guard, see :class:`onceward.Policy`.

    Raises:
        ValueError, TypeError: the URL or an option is not valid, or two options contradict each other.
    """

    def __init__(
        self,
        store: "str | Store",
        *,
        name: str | None = None,
        clock: Clock = boottime,
        observe: "Iterable[Observer]" = (),
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(store, str):
            check_type("Once(store)", store, "exchange", "a URL such as 'sqlite:///orders.db', or a store")
        self.store: Store = open_store(store) if isinstance(store, str) else store
        observers = Observers(checked_observers(observe)) if observe else UNOBSERVED
        url = store if isinstance(store, str) else None
        self.guards = GuardFactory(self.store, clock, name, policy_of(Policy(), options), observers, url)
        self.guards.watch_store()

    @property
    def policy(self) -> Policy:
        """The defaults of every guard."""
        return self.guards.defaults

    def using(self, *, name: str | None = None, **options: Unpack[Options]) -> "Once":
        """Return a Once on the same store with other defaults, as in ``once.using(lease=5).run(key, function)``."""
        return _of(self.guards.using(name, options))

    def __reduce__(self) -> tuple[object, ...]:
        return _of, (self.guards,)

    # --- guarding functions ---------------------------------------------------------------------------------------

    def __call__(
        self,
        *,
        key: "KeySource",
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> "Decorator":
        """Guard a function or coroutine function, as in ``@once(key="order.id", lease=60)``.

        Args:
            key: a JMESPath expression that begins with a parameter, such as ``order.id`` for ``def charge(order)``, or a
                callable that gets the arguments that it names.
            fingerprint: the input that must not change under one key: as for ``key``, or True for all arguments.
            name: the namespace of the keys; by default the function's module and qualified name. If you rename or move the
                function, it forgets its keys, and every effect runs again: give it ``name="old_module.old_name"``. A
                lambda, a partial, and two functions of one factory need a name (docs/reference/keys.md).
            **options: see :class:`onceward.Policy`.

        Returns:
            A decorator. The decorated function has two methods that take its arguments. ``key_of()`` returns the key in the
            ledger. ``outcome()`` calls it and returns a :class:`onceward.CallOutcome`: the value, and whether it is a replay.

        Raises:
            ValueError, TypeError: an option is not valid or does not fit the function. Raised when decorating.
        """
        self.guards.policy(options)  # refuses wrong options now, before there is a function
        from onceward.claim.decorated import DecoratedHandler  # loaded by the first decorator

        def decorate(function: Callable[..., object]) -> Callable[..., object]:
            if isinstance(function, classmethod | staticmethod):
                return type(function)(decorate(function.__func__))
            return DecoratedHandler(self.guards, function, key, fingerprint, name, options).wrapped()

        return cast("Decorator", decorate)

    def run(self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``function(*args, **kwargs)`` once for ``key``, in this thread, or return its recorded result.

        Args:
            key: str, int, UUID, bytes, or a tuple of them; unique among the calls of ``function``.
            function: the handler; its module and qualified name are the namespace of the key. For another namespace, for a
                partial or after a rename, write ``once.using(name="old.name").run(...)``. Pass values that differ between
                calls as arguments: a closure over them is a different function each time, and is refused.
            *args: its arguments.
            **kwargs: as above.

        Raises:
            Busy, Mismatch, Parked, KeyMissing, LeaseLost, ResultUnavailable, ResultNotRecorded, StoreError: as their
                docs say.
        """
        guard = self.guards.for_run(function, args, kwargs)
        return cast("R", guard.call(ledger_key(guard.name, key), None, function, args, kwargs))

    @overload
    async def run_async(
        self, key: object, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def run_async(self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def run_async(
        self, key: object, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Like :meth:`run`, for a coroutine function (or a function that does not block)."""
        guard = self.guards.for_run(function, args, kwargs, is_async=True)
        return await guard.call_async(ledger_key(guard.name, key), None, function, args, kwargs)

    def run_outcome(
        self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "CallOutcome[R]":
        """Like :meth:`run`; returns the value, whether it is a replay, of which attempt, and when it was recorded."""
        guard = self.guards.for_run(function, args, kwargs)
        outcome = guard.call(ledger_key(guard.name, key), None, function, args, kwargs, whole=True)
        return cast("CallOutcome[R]", outcome)

    @overload
    async def run_outcome_async(
        self, key: object, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> "CallOutcome[R]": ...

    @overload
    async def run_outcome_async(
        self, key: object, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "CallOutcome[R]": ...

    async def run_outcome_async(
        self, key: object, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Like :meth:`run_outcome`, for a coroutine function (or a function that does not block)."""
        guard = self.guards.for_run(function, args, kwargs, is_async=True)
        return await guard.call_async(ledger_key(guard.name, key), None, function, args, kwargs, whole=True)

    # --- claims ---------------------------------------------------------------------------------------------------

    def claim(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> "ClaimContext":
        """Return a context, for ``with`` or ``async with``, whose body runs once for ``key``.

        The key is COMPLETED when the body ends without an exception, even by ``return``, ``break`` or ``continue``. Without
        ``claim.complete(result)`` the result is None, and the body never runs again for this key. To leave the key for a
        retry, raise an exception or call ``claim.release()``. The option ``cache`` has no effect: each claim asks the ledger.

        Raises:
            Completed: from the ``with`` statement: the body has run before; its result is in the error's ``result``.
            Busy, Parked, Reentrant, StoreError: from the ``with`` statement.
            ValueError: ``on_busy="skip"``, because a ``with`` block cannot be skipped.
        """
        from onceward.claim.context import ClaimContext  # loaded by the first block

        guard = self.guards.for_keys(name, options, no_skip=_NO_SKIP_BLOCK)
        return ClaimContext(guard, ledger_key(guard.name, key))

    def acquire(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> "Claim":
        """Claim ``key`` and return the claim. You must end it with ``complete``, ``release`` or ``park``.

        Only ``claim.extend()`` renews it. When its lease is over, others can take the key over. You decide what an error
        means, so the options ``on_error``, ``final``, ``heartbeat`` and ``cache`` have no effect.

        Raises:
            Completed, Busy, Parked, StoreError: as for :meth:`claim`.
            ValueError: ``on_busy="skip"``, because this returns a claim or raises.
        """
        from onceward.claim.held import claimed  # loaded with the first guard

        guard = self.guards.for_keys(name, options, no_skip=_NO_SKIP_ACQUIRE, heartbeat=False)
        full = ledger_key(guard.name, key)
        return claimed(full, guard.enter(full, None))

    async def acquire_async(self, key: object, *, name: str | None = None, **options: Unpack[Options]) -> "Claim":
        """Like :meth:`acquire`, for a coroutine; end it with ``complete_async``, ``release_async`` or ``park_async``."""
        from onceward.claim.held import claimed  # loaded with the first guard

        guard = self.guards.for_keys(name, options, no_skip=_NO_SKIP_ACQUIRE, heartbeat=False)
        full = ledger_key(guard.name, key)
        return claimed(full, await guard.enter_async(full, None))

    def transaction(
        self, key: object, connection: C, *, name: str | None = None, **options: Unpack[Options]
    ) -> "Transaction[C]":
        """Return a context whose writes on ``connection`` commit together with the record: both, or neither.

        The whole body is one transaction, which also claims the key. A concurrent duplicate waits for it, and a crash leaves
        nothing behind. Do slow work before it, or use ``claim.transaction(connection)``.

        Args:
            key: as for :meth:`run`.
            connection: your own, to the ledger's database, in no transaction. For SQLite a ``sqlite3.Connection``. For PostgreSQL
                one of psycopg, asyncpg, SQLAlchemy (also a session) or Django. Enter the context with ``async with`` if you
                await the connection (docs/reference/transactions.md).
            name: the namespace of the key.
            **options: see :class:`onceward.Policy`. ``heartbeat``, ``cache`` and seconds of ``on_busy`` have no effect,
                because nobody else can write the key meanwhile.

        Raises:
            Completed, Busy, Parked, StoreError: from the ``with`` statement.
            TypeError: this ledger cannot do that, or the connection is of another kind, or for the other kind of ``with``.
            ValueError: the connection is to another database, or in a transaction; or ``on_busy="skip"``, because a ``with``
                block cannot be skipped.
        """
        from onceward.claim.key_transaction import KeyTransaction

        guard = self.guards.for_keys(name, options, no_skip=_NO_SKIP_BLOCK, heartbeat=False)
        return KeyTransaction(guard, ledger_key(guard.name, key), connection)

    def transact(
        self,
        key: object,
        writes: "Sequence[object]",
        result: object = None,
        *,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> object:
        """Make ``writes`` to the ledger's database once for ``key``: claim, effect and completion in a single request.

        Use it for ledgers in DynamoDB, when the handler is nothing but such writes. They all commit with the record, or
        nothing does, so a crash leaves no partial state.

        Args:
            key: as for :meth:`run`.
            writes: as for :meth:`Claim.transact`.
            result: what is returned now and to duplicates.
            name: the namespace of the key.
            **options: see :class:`onceward.Policy`. There is no handler, so ``heartbeat``, ``on_error``, ``final`` and
                ``cache`` have no effect.

        Returns:
            ``result``, or for a duplicate the recorded result.

        Raises:
            EffectRefused: the condition of a write does not hold; nothing was written, and the key is free.
            Busy, Parked, ResultUnavailable, StoreError: as their docs say.
            TypeError, ValueError: this ledger cannot do that, or a write has the wrong form; or ``on_busy="skip"``, because
                the returned value could not tell whether the writes were made.
        """
        return drive(self._transacting(key, writes, result, name, options), self.store)

    async def transact_async(
        self,
        key: object,
        writes: "Sequence[object]",
        result: object = None,
        *,
        name: str | None = None,
        **options: Unpack[Options],
    ) -> object:
        """Like :meth:`transact`, for a coroutine."""
        return await drive_async(self._transacting(key, writes, result, name, options), self.store)

    def _transacting(
        self, key: object, writes: "Sequence[object]", result: object, name: str | None, options: Options
    ) -> Steps[object]:
        from onceward.claim.key_transaction import commit
        from onceward.stores.capabilities import TRANSACT

        write = TRANSACT.require(self.store)(writes)
        guard = self.guards.for_keys(name, options, no_skip=_NO_SKIP_TRANSACT, heartbeat=False)
        return commit(guard, ledger_key(guard.name, key), result, write)

    @property
    def ledger(self) -> "Ledger":
        """The records, for people: list, show, clear, park, unpark and settle them."""
        from onceward.stores.ledger import Ledger

        return Ledger(self.store)

    def close(self) -> None:
        """Close the store's connections. The next use opens them again."""
        self.store.close()


def check_once(once: object, example: str) -> None:
    """Raise TypeError when ``once`` is not a Once but a URL, or the function of a decorator without ``(once)``.

    Args:
        once: the argument.
        example: the right call, with ``{}`` in the Once's place, as in ``"SqsWorker({}, 'orders', charge)"``.
    """
    if isinstance(once, Once):
        return
    if callable(once) and not isinstance(once, type) and example.startswith("@"):
        raise TypeError(f"once={once!r}: (once) is missing: write {example.format('once')}")
    url = shown_url(once) if isinstance(once, str) else "sqlite:///orders.db"
    right = example.format(f"Once({url!r})")
    raise TypeError(f"once={url if isinstance(once, str) else once!r}: give an Once, as in {right}")


def _of(guards: GuardFactory) -> Once:
    """Return a Once on the store of ``guards``."""
    once = Once(guards.store)
    once.guards = guards
    return once
