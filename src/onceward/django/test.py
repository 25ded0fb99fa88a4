"""Test cases whose ledger begins empty in each test."""

from django.test import TestCase, TransactionTestCase

from onceward.stores.memory import MemoryStore
from onceward.web.django_project import STORE, project_once

__all__ = ["LedgerTestCase", "LedgerTransactionTestCase"]


class LedgerTestCase(TestCase):
    """A ``TestCase`` with a ledger in memory. ``@atomic`` is then a plain ``transaction.atomic``: nothing survives the test."""

    def setUp(self) -> None:
        """Give the test a ledger of its own."""
        super().setUp()
        STORE.instead = MemoryStore()
        self.addCleanup(setattr, STORE, "instead", None)


class LedgerTransactionTestCase(TransactionTestCase):
    """A ``TransactionTestCase`` on the ledger of the test database, in which effects and records commit together."""

    def setUp(self) -> None:
        """Empty the ledger, which ``flush`` leaves alone."""
        super().setUp()
        ledger = project_once().ledger
        self.addCleanup(ledger.store.close)  # else a server does not drop the test database
        for record, _ in list(ledger.records()):
            ledger.clear(record.key, live=True, message=True, unsent=True)
