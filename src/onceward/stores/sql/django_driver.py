"""Transactions of Django: ``once.transaction(key, connections["default"])`` is a ``transaction.atomic`` of that database."""

from collections.abc import Callable
from typing import Any, ClassVar

from django.db import connections, transaction
from django.utils.connection import ConnectionProxy

from onceward.errors import StoreError
from onceward.stores.capabilities import AnotherDatabase, TransactionState
from onceward.stores.sql.drivers import CallersDriver


class DjangoDriver(CallersDriver):
    """One of ``django.db.connections``.

    Attributes:
        vendor: Django's name of the database.
        server: its own name.
        state_of: returns the state of a driver's connection.
    """

    vendor: ClassVar[str]
    server: ClassVar[str]
    state_of: Callable[[Any], TransactionState]
    _atomic: Any = None

    def __init__(self, connection: Any, seconds: float) -> None:
        if isinstance(connection, ConnectionProxy):  # ``django.db.connection``, which stands for the default database's
            connection = connections[connection.alias]
        if connection.vendor != self.vendor:
            raise AnotherDatabase(f"the database {connection.alias!r} is not {self.server}, and the ledger is")
        super().__init__(connection, seconds)

    @property
    def raw(self) -> Any:
        return self.connection.connection

    def check(self) -> None:
        alias = self.connection.alias
        self.check_fits()
        if self.connection.in_atomic_block:
            raise ValueError(
                f"the database {alias!r} is in transaction.atomic() already, so this would be a savepoint: enter the "
                "transaction outside it. With ATOMIC_REQUESTS, put @transaction.non_atomic_requests on the view, below "
                "@idempotent. In tests, use TransactionTestCase"
            )
        if not self.connection.get_autocommit():
            raise ValueError(f"autocommit is off for the database {alias!r}, so a transaction may be open already")

    def check_fits(self) -> None:
        """Connect, if Django has not. Raise ValueError if the driver is one that we cannot use."""
        self.connection.ensure_connection()

    def start(self) -> None:
        atomic = transaction.Atomic(self.connection.alias, savepoint=False, durable=True)
        atomic.__enter__()
        self._atomic = atomic

    def enter(self) -> None:
        self.check_fits()

    def check_healthy(self) -> None:
        """Raise StoreError if Django waits for a rollback."""
        if self.connection.needs_rollback:
            raise StoreError(
                "the transaction must be rolled back: set_rollback(True), or a database error within the body"
            )

    def finish(self) -> None:
        if self.connection.savepoint_ids:  # Django would end that block in place of ours, and commit nothing
            raise StoreError(
                "the body has left a block of transaction.atomic() open: close it, or the generator it is in"
            )
        self._leave(None)

    def undo(self) -> None:
        try:
            self._leave(Exception("rolled back"))
        finally:
            # An interrupt has stopped Django in the middle of its block.
            if self.connection.in_atomic_block or (
                self.raw is not None and (not self.connection.autocommit or self.is_open())
            ):
                self.cut()
                self.connection.in_atomic_block, self.connection.connection = False, None  # the next use connects anew

    def _leave(self, error: Exception | None) -> None:
        """Leave Django's block, which rolls back for an error."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        try:
            atomic.__exit__(type(error) if error else None, error, None)
        except Exception as raised:  # Django's, which can hide an interrupt of its COMMIT
            context = raised.__context__
            while isinstance(context, Exception):
                context = context.__context__
            if context is not None:
                raise context from None
            raise

    def is_open(self) -> bool:
        """Return whether the driver's connection is in a transaction."""
        return self.state_of(self.raw) is TransactionState.OPEN

    def cut(self) -> None:
        self.connection.close()
