"""The chain of a key: up by its parents, down by an index, across ledgers, and through what is missing or forged."""

import pytest

from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.stores.capabilities import MIGRATE
from onceward.stores.chains import chain_of
from onceward.stores.contract import NotFound
from onceward.stores.ledger import Ledger
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.schema import ORIGIN_INDEX
from onceward.testing.bench import claim_of


def put(store, key, parent=None, root=None):
    headers = {"onceward-parent": parent, "onceward-root": root}
    assert drive(store.insert(claim_of(key, "a", origin=provenance_in(headers.get).origin)), store).won


def tree(node):
    return node.key if not node.children else {node.key: [tree(child) for child in node.children]}


def shown(key, *stores, **options):
    chain = chain_of(key, [Ledger(store) for store in stores], **options)
    assert not chain.unread
    return [tree(top) for top in chain.tops]


CHAIN = [("order", None), ("pay", "order"), ("ship", "order"), ("book", "pay"), ("mail", "ship")]
WHOLE = [{"order": [{"pay": ["book"]}, {"ship": ["mail"]}]}]


@pytest.mark.parametrize("key", [key for key, _ in CHAIN])
def test_each_key_of_a_chain_shows_all_of_it(store, key):
    put(store, "other")
    put(store, "other-pay", "other", "other")
    for one, parent in CHAIN:
        put(store, one, parent, "order")
    assert shown(key, store) == WHOLE


@pytest.mark.parametrize("key", [key for key, _ in CHAIN])
def test_a_chain_goes_through_several_ledgers(store, clock, key):
    others = [MemoryStore(clock), MemoryStore(clock)]
    for number, (one, parent) in enumerate(CHAIN):
        put([store, *others][number % 3], one, parent, "order")
    assert shown(key, store, *others, scan=True) == WHOLE


def test_what_is_missing_is_shown_by_its_name(store):
    put(store, "mail", "ship", "order")
    put(store, "pay", "order", "order")
    assert shown("mail", store) == [{"order": [{"ship": ["mail"]}, "pay"]}]
    chain = chain_of("mail", [Ledger(store)])
    assert [len(chain.tops[0].links), len(chain.tops[0].children[0].links)] == [0, 0]


def test_forged_headers_that_make_a_circle_end(store):
    for one, parent in (("a", "c"), ("b", "a"), ("c", "b"), ("self", "self")):
        put(store, one, parent, "a")
    tops = shown("a", store)
    assert "self" in tops
    assert str(tops).count("'b'") == 1


def test_a_key_that_is_nowhere_is_not_found(store):
    with pytest.raises(NotFound, match="nothing: no such key in sqlite:"):
        shown("nothing", store)


def test_a_chain_with_more_keys_than_asked_for_is_cut(store):
    put(store, "k0")
    for n in range(1, 20):
        put(store, f"k{n}", "k0", "k0")
    chain = chain_of("k0", [Ledger(store)], limit=10)
    assert chain.cut
    assert len(chain.tops[0].children) == 9


def test_a_former_versions_file_is_traced_after_migrate_or_by_reading_it(store, sql):
    for one, parent in CHAIN:
        put(store, one, parent, "order")
    sql(f"DROP INDEX {ORIGIN_INDEX}")
    ledger = Ledger(store)
    assert chain_of("order", [ledger]).unread == [ledger]
    chain = chain_of("mail", [ledger])
    assert chain.unread == [ledger]
    assert [tree(top) for top in chain.tops] == [{"order": [{"ship": ["mail"]}]}]  # upwards it needs none
    assert shown("order", store, scan=True) == WHOLE
    assert shown("mail", store, scan=True) == WHOLE
    assert (f"index {ORIGIN_INDEX}", True) in drive(MIGRATE.require(store)(), store)
    assert shown("order", store) == WHOLE
