"""Django's transactions. One around a guarded view would be committed after the record, which is too late."""

from collections.abc import Callable
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

View = TypeVar("View", bound=Callable[..., object])


def refuse_transaction() -> None:
    """Raise ImproperlyConfigured in an open transaction: it would be committed after the record."""
    for connection in connections.all(initialized_only=True):
        # Django's TestCase always rolls back its own
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            raise ImproperlyConfigured(
                f"a transaction on the database {connection.alias!r} is open around the guarded view, and would be committed "
                "after the record. Put @idempotent around @transaction.atomic, and with ATOMIC_REQUESTS on the "
                "dispatch of a class-based view. Nothing has run"
            )


class TransactionInside(set[str]):
    """Opens the transaction of ATOMIC_REQUESTS inside a guarded view, not around it as Django does.

    Otherwise the answer would be recorded before the effect is committed. The set contains the databases for which the view
    wants no transaction.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def view(self, view: View) -> View:
        """Return the view, wrapped in its transactions."""
        asked_for_none = set(self)
        for alias, database in connections.settings.items():
            if database["ATOMIC_REQUESTS"] and alias not in asked_for_none:
                view = transaction.atomic(using=alias)(view)
        return view
