"""Django's transactions: one that is open around a guarded view would be committed after the record."""

from collections.abc import Callable
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]  # Django has no types
from django.db import connections, transaction  # type: ignore[import-untyped]  # as above

View = TypeVar("View", bound=Callable[..., object])


def refuse_transaction() -> None:
    """Raise ImproperlyConfigured in a transaction: it would be committed after the answer to it is recorded."""
    for connection in connections.all(initialized_only=True):
        # those of Django's TestCase are rolled back, whatever happens
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            raise ImproperlyConfigured(
                f"a transaction on the database {connection.alias!r} is open around what takes effect once, and its end would "
                "come after the record. Put @idempotent around @transaction.atomic, and with ATOMIC_REQUESTS on the "
                "dispatch of a class-based view; nothing has run"
            )


class TransactionInside(set[str]):
    """Keeps Django from opening the transaction of ATOMIC_REQUESTS around a guarded view, and opens it inside.

    Otherwise the answer would be recorded before the effect is committed. What is in the set are the databases for which the
    view has asked for none.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def view(self, view: View) -> View:
        """Return the view within the transactions that it is to have."""
        asked_for_none = set(self)
        for alias, database in connections.settings.items():
            if database["ATOMIC_REQUESTS"] and alias not in asked_for_none:
                view = transaction.atomic(using=alias)(view)
        return view
