"""Django's transactions. One around a guarded view would be committed after the record, which is too late."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from onceward.claim.held import HeldClaim, current, innermost
from onceward.claim.open_transactions import open_in_django
from onceward.stores.capabilities import TRANSACTION, AnotherDatabase
from onceward.stores.contract import Store

T = TypeVar("T")
_log: Final = logging.getLogger("onceward")
_BESIDE: Final = (
    "%s: the ledger %s is not in the database %r, so the view is taken out of ATOMIC_REQUESTS. Its handler's transaction commits before "
    "its key completes. A process that dies in between leaves the key to the end of its lease, and then the handler runs again"
)


def refuse_transaction() -> None:
    """Raise ImproperlyConfigured in an open transaction: it would be committed after the record."""
    for alias in open_in_django():
        raise ImproperlyConfigured(
            f"a transaction on the database {alias!r} is open around the guarded view, and would be committed "
            "after the record. Put @idempotent around @transaction.atomic, and with ATOMIC_REQUESTS on the "
            "dispatch of a class-based view. A view of a WebhookReceiver must be called outside of it. Nothing has run"
        )


@contextmanager
def _committing(alias: str, late: list[Exception]) -> Iterator[None]:
    """Open a transaction. If a hook of ``on_commit`` fails, put its error into ``late``, so that the others commit, too."""
    committed: list[bool] = []
    within = connections[alias].in_atomic_block  # as in a TestCase, where nothing is committed
    try:
        with transaction.atomic(using=alias):
            if not within:
                transaction.on_commit(partial(committed.append, True), using=alias)
            yield
    except Exception as error:
        if not committed:
            raise
        late.append(error)


class TransactionInside(set[str]):
    """Opens the transaction of ATOMIC_REQUESTS inside a guarded view, not around it as Django does.

    Otherwise the answer would be recorded before the effect is committed. The set contains the databases for which the view
    wants no transaction.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    @property
    def aliases(self) -> list[str]:
        """The databases in which the view has a transaction."""
        asked_for_none = set(self)
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and alias not in asked_for_none
        ]

    def call(self, function: Callable[[], T], complete: Callable[[HeldClaim, T], object]) -> T:
        """Call ``function`` within the transactions, and return its result.

        Args:
            function: the view or handler.
            complete: completes the claim that is current now, if there is one, with a result that was committed, before the
                error of a later hook of ``on_commit`` is raised.
        """
        claim, aliases, late = innermost(), self.aliases, list[Exception]()
        try:
            # Outermost: if its COMMIT fails after the others', all run again. Else theirs could be lost.
            with ExitStack() as outermost:
                joint = next(filter(None, (self._join(outermost, alias) for alias in aliases)), None)
                with ExitStack() as stack:
                    for alias in aliases:
                        if joint is None or joint.connection.alias != alias:
                            stack.enter_context(_committing(alias, late))
                    result = function()
                if joint is not None:
                    if joint.connection.get_rollback():
                        raise _RolledBack  # Django would roll back, too, and answer as the view has
                    joint.result = result
        except _RolledBack:
            joint = None
        if late:
            if joint is None and claim is not None:
                complete(claim, result)
            raise late[0]
        return result

    def _join(self, _stack: ExitStack, _alias: str, /) -> Any:
        """Return the transaction of the current claim on a database; None if there can be none."""
        return None


class TransactionJoined(TransactionInside):
    """The same, for a handler whose record joins the transaction, if one is in the ledger's database.

    Args:
        name: the namespace of the keys, for messages.
        store: the ledger.
        asked_for_none: the databases for which the view wants no transaction.
    """

    def __init__(self, name: str, store: Store, asked_for_none: Iterable[str] = ()) -> None:
        super().__init__(asked_for_none)
        self._name, self._store = name, store
        self._beside: set[str] = set()  # the databases in which the ledger cannot be
        self._warned: set[str] = set()

    def look(self) -> None:
        """Say now for which databases no record can join, as far as that shows without asking them."""
        for alias in self.aliases:
            try:
                TRANSACTION.require(self._store)(connections[alias])
            except (AnotherDatabase, TypeError):
                self._beside.add(alias)
                self._warn(alias)

    def _join(self, stack: ExitStack, alias: str, /) -> Any:
        if alias in self._beside or connections[alias].in_atomic_block:  # which is a TestCase's
            return None
        try:
            return stack.enter_context(current().transaction(connections[alias]))
        except (AnotherDatabase, TypeError):  # the next connection can be to the ledger's database, as after a failover
            self._warn(alias)
            return None

    def _warn(self, alias: str) -> None:
        if alias not in self._warned:
            self._warned.add(alias)
            _log.warning(_BESIDE, self._name, self._store.url, alias)


class _RolledBack(Exception):
    """Rolls back what the handler wrote, which has asked for it."""
