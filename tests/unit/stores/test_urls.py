"""What a store's URL may say and what a store can do, and a store of another package that touches no file of ours."""

import importlib
import re
import sys
from importlib import import_module

import pytest

from onceward import Once, stores
from onceward.stores import STORES, capabilities, open_store
from onceward.stores.capabilities import PROVISION, TRANSACT, TRANSACTION, Capability
from onceward.stores.sqlite.store import SqliteStore
from places import SUPPORT
from printed.pages import section
from tables import each


@each("base", ["sqlite:///ledger.db", "dynamodb://ledger", "memory:"])
@each(
    ("end", "says"),
    [
        ("#", "write it %23"),
        ("?timeout=5#x", "write it %23"),
        ("?timeout=1&%74imeout=1", "is given twice"),
        ("?timeout=", "has no value"),
        ("?region=&timeout=1", "has no value"),
        ("?probe", "has no value"),
    ],
)
def test_what_would_be_passed_over_is_refused(base, end, says):
    with pytest.raises(ValueError, match=says):
        open_store(base + end)


def test_a_plus_is_a_plus_and_a_space_is_written_as_in_a_path():
    layout = open_store("dynamodb://ledger?partition=pk=a+b%20c%2B{key}").layout
    assert layout.parts[0][:2] == ("pk", "a+b c+")


@each("prefix", ["a+b", "a b", "a%b", "a#b", "a&b=c", "ä/:b"])
def test_a_stores_own_url_opens_the_same_store(prefix):
    from onceward.stores.dynamodb import open_table

    store = open_table("ledger", region="eu-west-1", partition=f"pk={prefix}{{key}}", names={"owner": f"o {prefix}"})
    again = open_store(store.url)
    assert (again.url, again.layout.parts) == (store.url, store.layout.parts)
    assert again.layout.names == store.layout.names


@each("name", ["a?timeout=1.db", "50%25.db", "#1.db"])
def test_the_url_of_a_store_opens_the_same_file(tmp_path, name):
    store = SqliteStore(tmp_path / name)
    Once(store).run("k", int)
    store.close()
    assert (tmp_path / name).exists()
    again = Once(store.url)
    assert again.store.path == store.path
    assert again.ledger.stats()["COMPLETED"] == 1
    again.close()


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_what_an_error_of_a_server_advises_to_set_is_an_option_of_the_url(scheme):
    module = import_module(stores.STORES[scheme])
    fixes = open_store(f"{scheme}://user@host/db").faults.fixes.values()
    named = set(re.findall(r"\b(\w+)=", " ".join(fixes)))
    assert named <= {*module.OPTIONS, "target_session_attrs"}  # which is libpq's


SECRET = "hush"


@each("end", [f"user:{SECRET}@host/db", f"host/db?p%61ssword={SECRET}", f"host/db?sslpassword={SECRET}&lanes=2"])
def test_no_password_is_shown(end):
    assert SECRET not in open_store(f"postgresql://{end}").url


@each("host", ["[::1", "[]", "a]b"])
def test_a_host_that_cannot_be_read_is_refused_without_the_password(host):
    with pytest.raises(ValueError, match="no host and port") as refused:
        open_store(f"postgresql://user:{SECRET}@{host}/db")
    assert SECRET not in str(refused.value)


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
    kinds = [one for one in vars(importlib.import_module(STORES[scheme])).values() if isinstance(one, type)]
    (told,) = [kind.capabilities for kind in kinds if hasattr(kind, "capabilities")]
    assert told.keys() <= NAMES
    for where in told.values():
        module, _, function = where.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_capability_that_a_store_lacks_is_none_or_a_clear_error():
    store = Once("memory:").store
    assert TRANSACT.of(store) is None
    with pytest.raises(TypeError, match=r"^memory: cannot commit other writes .*: use a store that can "):
        TRANSACT.require(store)
    with pytest.raises(TypeError, match="cannot commit a transaction of yours"):
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
    with pytest.raises(TypeError, match="cannot be made ahead"):
        PROVISION.require(Once("memory:").store)
