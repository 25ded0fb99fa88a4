"""A file that another version has made: its schema grows, and its records stay; and the page of steps runs as it is printed."""

import contextlib
import json
import re
import sqlite3
from types import SimpleNamespace

import pytest

import onceward
from commands.command_line import Cli
from fixtures import closing_fixture
from onceward import Once
from onceward.stores.sqlite.schema import ADDED, INDEXES
from places import ROOT

# As the versions before `updated_at` made it.
OLDER = """
CREATE TABLE onceward (
    key TEXT PRIMARY KEY NOT NULL, status TEXT NOT NULL, owner TEXT NOT NULL, fence INTEGER NOT NULL, beat INTEGER NOT NULL,
    lease_until REAL NOT NULL, attempts INTEGER NOT NULL, fingerprint TEXT, result TEXT, error TEXT, created_at REAL NOT NULL,
    expires_at REAL
);
CREATE INDEX onceward_expiry ON onceward (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE onceward_meta (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);
INSERT INTO onceward_meta VALUES ('version', '1'), ('layout', '2');
CREATE TABLE onceward_high (fence INTEGER NOT NULL, written REAL NOT NULL);
INSERT INTO onceward_high SELECT 0, 0.0;
INSERT INTO onceward VALUES ('n:k', 'COMPLETED', 'o', 5, 1, 10.0, 1, NULL, '"receipt"', NULL, 9.0, NULL);
"""
THEIR_INSERT = "INSERT INTO onceward (key, status, owner, fence, beat, lease_until, attempts, created_at) VALUES (?, 'RELEASED', 'o', 5, 1, 10.0, 1, 9.0)"


def sql(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows


@pytest.fixture
def path(tmp_path):
    """A ledger that an older version has made."""
    with contextlib.closing(sqlite3.connect(tmp_path / "onceward.db")) as connection:
        connection.executescript(OLDER)
    return tmp_path / "onceward.db"


once = closing_fixture(lambda path: Once(f"sqlite:///{path}", name="n"))


def columns(path):
    return [row[1] for row in sql(path, "PRAGMA table_info(onceward)")]


def test_a_file_of_a_lower_minor_gains_its_columns_and_keeps_its_records(once, path):
    assert once.run("k", pytest.fail) == "receipt"
    record, _ = once.ledger.show("n:k")
    assert (record.updated_at, record.worker, record.needs) == (None, None, None)
    assert set(ADDED) <= set(columns(path))
    assert set(INDEXES) <= {name for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'index'")}
    once.run("new", int)
    assert once.ledger.show("n:new")[0].worker
    assert sql(path, "SELECT value FROM onceward_meta WHERE name = 'version'") == [("1",)]


def test_an_older_version_goes_on_writing_beside_this_one(once, path):
    once.run("k", pytest.fail)
    sql(path, THEIR_INSERT, "n:theirs")
    assert once.run("theirs", int) == 0
    assert once.ledger.show("n:theirs")[0].attempts == 2


def test_a_file_of_a_higher_minor_works_and_stays_what_it_is(once, path):
    once.run("k", pytest.fail)
    sql(path, "ALTER TABLE onceward ADD COLUMN later TEXT")
    sql(path, "UPDATE onceward_meta SET value = '99' WHERE name = 'layout'")
    sql(path, "UPDATE onceward SET later = 'x', expires_at = 11.0")
    once.close()
    assert once.run("k", lambda: "again") == "again", "it has expired"
    assert sql(path, "SELECT later FROM onceward WHERE key = 'n:k'") == [("x",)]
    assert sql(path, "SELECT value FROM onceward_meta WHERE name = 'layout'") == [("99",)]


def test_migrate_adds_the_columns_once(path):
    cli = Cli(path.parent)
    told = cli.run("migrate")
    assert (told.returncode, told.stdout.decode()) == (0, "added: its columns and indexes\n")
    assert cli.run("migrate").stdout.endswith(b"needs no migration\n")
    parts = json.loads(cli.run("migrate", "--json").stdout)["parts"]
    assert parts == [{"what": "its columns and indexes", "made": False}]
    assert cli.run("show", "n:k").returncode == 0


BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "steps.md").read_text(encoding="utf-8"), re.DOTALL
)


class SmtpIsDown(Exception):
    pass


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page leaves to its reader."""
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect(tmp_path / "orders.db", isolation_level=None)
    connection.executescript("CREATE TABLE stock (item, left); INSERT INTO stock VALUES ('tea', 5)")
    made, down = [], [True]

    def send_mail(order):
        made.append("mail")
        if down:
            raise SmtpIsDown(down.pop())

    yield {
        "bank": SimpleNamespace(pay=lambda key, total: made.append("charge") or {"id": "ch_1", "total": total}),
        "warehouse": SimpleNamespace(find=lambda key: made.append("found") or "reserved"),
        "reserve": lambda order: made.append("reserve"),
        "send_mail": send_mail,
        "connection": connection,
        "made": made,
    }
    connection.close()


def test_the_page_runs_and_a_person_retries_its_parked_mail(names):
    for block in BLOCKS:
        exec(compile(block, "docs/reference/steps.md", "exec"), names)
    order, made, once = {"id": "o-42", "total": 12}, names["made"], names["once"]
    with pytest.raises(SmtpIsDown):
        names["place"](order)
    with pytest.raises(onceward.Parked, match="'mail'"):
        names["place"](order)
    once.ledger.retry("orders.place:o-42", "mail")
    assert names["place"](order) == "ch_1"
    assert made == ["charge", "reserve", "mail", "mail"]
    made.clear()
    assert names["ship"](order) == names["ship"](order) == "4 left"
    once.ledger.retry("orders.ship:o-42", "mail")
    assert names["ship"](order) == "4 left"
    assert made == ["mail", "mail"]
    once.close()
