"""What a store's URL may say, and that nothing in it is passed over in silence."""

import re
from importlib import import_module

import pytest

from onceward import Once, stores
from onceward.stores import open_store
from onceward.stores.sqlite.store import SqliteStore
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
