"""What stores can do beyond the register, and a store of another package that touches no file of ours."""

import importlib
import sys

import pytest

from onceward import Once
from onceward.stores import STORES, capabilities
from onceward.stores.capabilities import PROVISION, TRANSACT, TRANSACTION, Capability
from places import SUPPORT
from printed.pages import section
from tables import each

pytestmark = pytest.mark.sampled(mode=1)

NAMES = {one.name for one in vars(capabilities).values() if isinstance(one, Capability)}
TOY = str(SUPPORT / "toy")


@pytest.fixture
def toy(monkeypatch):
    """A package that is installed beside ours."""
    monkeypatch.syspath_prepend(TOY)
    yield importlib.import_module("toy_store")
    sys.modules.pop("toy_store", None)


@each("scheme", STORES)
def test_each_capability_of_a_store_is_there_and_asked_for(scheme):
    told = importlib.import_module(STORES[scheme]).CAPABILITIES
    assert told.keys() <= NAMES
    for where in told.values():
        module, _, function = where.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_capability_that_a_store_lacks_is_none_or_a_clear_error():
    store = Once("memory:").store
    assert TRANSACT.of(store) is None
    with pytest.raises(TypeError, match=r"^memory: cannot commit other writes .* Use a store that can: dynamodb$"):
        TRANSACT.require(store)
    with pytest.raises(TypeError, match=r"sqlite$"):
        TRANSACTION.require(store)


def test_every_capability_is_documented():
    told = section("docs/explanation/architecture.md", "A store of your own")
    assert [name for name in NAMES if f"\n| `{name}` |" not in told] == []


def test_a_store_of_another_package_is_opened_by_its_url_and_named(toy, tmp_path):
    once = Once(f"toy://{tmp_path}/ledger")
    assert once.run("k", len, "abc") == once.run("k", len, "other") == 3
    assert PROVISION.require(once.store) is not None
    with pytest.raises(ValueError, match=r"one of dynamodb, mariadb, memory, .*toy, valkey, valkeys, as in"):
        Once("tyo:///ledger")
    with pytest.raises(TypeError, match=r"Use a store that can: mariadb, mysql, postgresql, sqlite, toy$"):
        TRANSACTION.require(Once("memory:").store)
