"""What is sent to PostgreSQL in lists, column by column, comes back as it was."""

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of
from tables import each

ODD = [
    "",
    "NULL",
    '"',
    "\\",
    '\\"',
    "a,b",
    "{x}",
    " edges ",
    "two\nlines",
    "\u00e9\U0001f600",
    "'quoted'",
    '{"a": "b"}',
]


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


@each("texts", [ODD, ODD[:1], ["same"] * 3, [*ODD, None], [None, None], ['"', '"'], ["\\"] * 2])
def test_texts_come_back_as_they_were(texts, store):
    rows = store.exchange(RawQuery("SELECT * FROM unnest($1::text[]) WITH ORDINALITY ORDER BY 2", list(texts)))
    assert [(text, number) for text, number in rows] == list(zip(texts, range(1, len(texts) + 1), strict=True))


@each("numbers", [[0, -1, 2**62], [7, 7], [1, None], [0.1, -2.5e-9, 1e300], [0.5, 0.5], [1.5, None], [2.0, 2]])
def test_numbers_come_back_as_they_were(numbers, store):
    kind = "float8" if any(type(one) is float for one in numbers) else "bigint"
    rows = store.exchange(RawQuery(f"SELECT * FROM unnest($1::{kind}[])", numbers))
    assert [value for (value,) in rows] == numbers


def test_times_of_a_batch_are_those_that_are_read_alone(store):
    writes = [claim_of(f"k{i}", "a", lease=i + 0.000001, keep=None if i == 2 else 5.0) for i in range(4)]
    replies = drive(store.insert_many(writes), store)
    assert [drive(store.load(f"k{i}"), store).record for i in range(4)] == [reply.record for reply in replies]


def test_a_nul_anywhere_in_a_batch_is_refused(store):
    held = drive(store.insert_many([claim_of("a", "o"), claim_of("b", "o")]), store)
    for results in (["\0", "x"], ["\0", "\0"], ["x\0", None]):
        pairs = [
            (next_of(reply.record, result=result), reply.record) for reply, result in zip(held, results, strict=True)
        ]
        with pytest.raises(StoreError, match="NUL"):
            drive(store.swap_many(pairs), store)
