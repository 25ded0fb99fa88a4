"""What SQL decides about a record, and makes of it, is what the protocol does: thousands of random records in SQLite."""

import contextlib
import sqlite3

import pytest

from onceward.core import protocol
from onceward.stores.sql import rules
from random_records import COLUMNS, cases, check, query


def answered(made):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("strpos", 2, lambda text, part: text.find(part) + 1)
        connection.execute(f"CREATE TABLE cases ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
        insert = f"INSERT INTO cases VALUES ({', '.join(f':{name}' for name in COLUMNS)})"
        connection.executemany(insert, [dict.fromkeys(COLUMNS) | case.row | {"n": n} for n, case in enumerate(made)])
        return connection.execute(query()).fetchall()


def test_sqlite_decides_as_the_protocol_does():
    made = cases(8_000, seed=1)
    check(made, answered(made))


@pytest.mark.parametrize("left_out", range(len(protocol.RULES) - 1))
def test_a_table_without_one_of_its_rules_is_noticed(left_out, monkeypatch):
    rest = [rule for number, rule in enumerate(protocol.RULES) if number != left_out]
    monkeypatch.setattr(rules, "RULES", rest)
    made = cases(4_000, seed=2)
    with pytest.raises(AssertionError):
        check(made, answered(made))


@pytest.mark.parametrize("condition", rules.CONDITIONS, ids=lambda one: one.says)
def test_a_condition_that_always_holds_is_noticed(condition, monkeypatch):
    monkeypatch.setitem(rules.CONDITIONS, condition, "1 = 1")
    made = cases(4_000, seed=3)
    with pytest.raises(AssertionError):
        check(made, answered(made))


def test_every_condition_of_the_table_has_its_sql():
    assert {condition for rule in protocol.RULES for condition in rule.conditions} == set(rules.CONDITIONS)
