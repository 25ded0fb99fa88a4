"""``onceward work`` names each setting that its brokers have."""

import asyncio
import sys

import msgspec
import pytest

from onceward.cli import work
from onceward.consumers.worker import library_settings
from onceward.core.policy import Policy
from onceward.nats.broker import NatsBroker
from onceward.pipelines.sources import brokers
from tables import each


@each("kind", work._BROKERS.values())
def test_the_help_names_each_setting(kind):
    _, *settings = (field.name for field in msgspec.structs.fields(getattr(brokers, kind)))
    broker = next(name for name, one in work._BROKERS.items() if one == kind)
    told = (
        " ".join(work.work.__doc__.split()).split("--set has the settings")[1].split(f" {broker}: ")[1].split(". ")[0]
    )
    assert [name.partition(".")[0].split(" ")[0] for name in told.split(", ")] == settings


def test_a_password_of_digits_stays_text_and_a_number_becomes_one():
    def connect(password=None, connect_timeout=2, tls_handshake_first=False, rebalance_timeout_ms=None): ...

    told = {"password": "0123", "connect_timeout": "5", "tls_handshake_first": "true", "rebalance_timeout_ms": "900"}
    source = work._source("nats:orders", [f"settings.{name}={value}" for name, value in told.items()])
    assert library_settings(source.settings, connect, "connect") == {
        "password": "0123",
        "connect_timeout": 5,
        "tls_handshake_first": True,
        "rebalance_timeout_ms": 900,
    }


def test_credentials_without_their_library_are_refused_with_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)  # as if it were not installed
    settings = {"user_credentials": "shop.creds"}
    broker = NatsBroker("nats://127.0.0.1:1", "orders", stream=None, dead="dead", settings=settings)
    with pytest.raises(ValueError, match=r"nats-py\[nkeys\]"):
        asyncio.run(broker.open(Policy()))
