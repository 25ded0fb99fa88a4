"""Tests as a user writes them, for the example's project."""

import pytest
from shop.models import Order
from shop.views import CardDeclined, order

from onceward.django import once
from onceward.django.test import LedgerTestCase, LedgerTransactionTestCase


class InMemory(LedgerTestCase):
    def test_once(self):
        assert order("k", "A-1", 5) == order("k", "A-1", 5)
        assert Order.objects.count() == 1

    def test_again(self):
        self.test_once()
        assert once.store.url.startswith("memory:")


class Whole(LedgerTransactionTestCase):
    def test_once(self):
        assert order("k", "A-1", 5) == order("k", "A-1", 5)
        assert Order.objects.count() == 1

    def test_declined(self):
        with pytest.raises(CardDeclined):
            order("k", "A-1", 10**7)
        assert [record.status for record, _ in once.ledger.records()] == ["PARKED"]

    def test_again(self):
        self.test_once()
