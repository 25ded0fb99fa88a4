"""Values by key, in all places that keep them, and statements and items, which take effect once."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from commands import pipeline_runs
from faults.processes import PATIENCE
from onceward.pipelines import PipelineInvalid, databases, load
from onceward.pipelines.keyvalue import dynamodb, files, redis, sql
from places import SOURCES
from servers.needs import numbers
from servers.postgres import PgBouncer
from tables import each

pytestmark = pytest.mark.sampled(place=1)
NAMES = numbers()


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis", "dynamodb"])
def place(request, tmp_path):
    """The class of a place, its URL, and a space of this test's own."""
    space = f"space-{next(NAMES)}"
    if request.param == "sqlite":
        return sql.SqlValues, f"sqlite:///{tmp_path}/values.db", space
    if request.param == "postgresql":
        return sql.SqlValues, request.getfixturevalue("postgres15").url, space
    if request.param == "mysql":
        return sql.SqlValues, request.getfixturevalue("mariadb").url, space
    if request.param == "redis":
        return redis.RedisValues, request.getfixturevalue("redis").url.partition("?")[0], space
    request.getfixturevalue("aws")
    server = request.getfixturevalue("dynoxide")
    return dynamodb.DynamoValues, f"dynamodb://{server.table(f'values-{next(NAMES)}')}?endpoint={server.url}", space


@pytest.fixture
def values(place):
    kind, url, space = place
    made = kind(url, space, "/")
    yield made
    made.close()


@pytest.mark.parametrize("value", ["é", 0, -1.5, False, None, [], {"a": [1, {"b": None}]}])
def test_a_value_comes_back_as_it_was(values, value):
    assert values.get("k") is None
    values.set("k", value, None)
    values.set("other", "x", None)
    assert values.get("k") == value
    assert type(values.get("k")) is type(value)


def test_keys_and_spaces_are_apart(place, values):
    kind, url, space = place
    for key in ("k", "k ", "K"):
        assert values.get(key) is None
        values.set(key, f"of {key}", None)
    assert [values.get(key) for key in ("k", "k ", "K")] == ["of k", "of k ", "of K"]
    other = kind(url, f"{space}-other", "/")
    assert other.get("k") is None
    other.close()


def test_a_set_has_each_member_once(values):
    for member in ("a", {"n": 1, "m": 2}, "a", {"m": 2, "n": 1}):
        values.add("k", member, None)
    assert sorted(values.get("k"), key=str) == ["a", {"m": 2, "n": 1}]


def test_a_value_and_a_set_expire_and_a_member_that_is_added_extends_the_whole_set(values):
    values.set("value", 1, 1)
    values.add("set", 1, 1)
    values.add("extended", 1, 1)
    values.add("extended", 2, 3600)
    values.set("stays", 1, 3600)
    while values.get("value") is not None or values.get("set") is not None:
        time.sleep(0.1)
    assert (values.get("stays"), sorted(values.get("extended"))) == (1, [1, 2])
    values.add("set", 2, None)
    assert values.get("set") == [2]


def test_first_uses_at_once_make_one_table(postgres15):
    for name in (f"values_{next(NAMES)}" for _ in range(10)):
        postgres15.sql(f"CREATE SCHEMA {name}", database="test")
        url = f"{postgres15.url}?options=-csearch_path%3D{name}"
        several, meet = [sql.SqlValues(url, "", "/") for _ in range(8)], threading.Barrier(8)

        def use(values, meet=meet):
            with values._database.connection():  # it is open when the others are
                meet.wait(PATIENCE)
            values.add("k", 1, None)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, several))
        for values in several:
            assert values.get("k") == [1]
            values.close()


def test_a_postgresql_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setitem(databases._POSTGRES, "connect_timeout", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        values = sql.SqlValues(f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x", "", "/")
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            values.get("k")


def test_a_server_that_has_vanished_holds_a_message_for_one_idle_connection_and_not_for_each(monkeypatch):
    asked, closed = [], []

    class Silent:
        def cursor(self):
            asked.append(self)
            raise TimeoutError  # after a long time

        def close(self):
            closed.append(self)

    database, fresh = databases.Database("mysql://root@127.0.0.1/test"), Silent()
    monkeypatch.setattr(database, "_connected", lambda: fresh)
    database._idle.extend((float("-inf"), Silent()) for _ in range(5))
    with database.connection() as connection:
        assert connection is fresh
    assert (len(asked), len(closed)) == (1, 5)


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_many_can_add_to_a_set_at_once(values):
    members = list(range(6))

    def add(number):
        for at in range(12):
            values.add("k", members[(number + at) % len(members)], 3600)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, members))
    assert sorted(values.get("k")) == members


@pytest.mark.parametrize(
    "place", ["postgresql", "mysql", "redis", "dynamodb"], indirect=True
)  # SQLite has no clock of its own
@pytest.mark.parametrize("offset", ["+1d", "-1d"])
def test_a_worker_with_a_wrong_clock_expires_nothing_and_keeps_nothing(place, faketime, offset):
    kind, url, space = place
    code = f"from {kind.__module__} import {kind.__name__} as Values\n"
    code += f"values = Values({url!r}, {space!r}, '/')\n"
    code += "print(values.get('k'))\nvalues.set('short', 1, 1)\nvalues.set('long', 1, 3600)"
    made = kind(url, space, "/")
    made.set("k", "here", 3600)
    command = [*faketime(offset), sys.executable, "-c", code]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(SOURCES)}
    )
    assert told.stdout == "here\n", told.stderr
    while made.get("short") is not None:
        time.sleep(0.1)
    assert made.get("long") == 1
    made.close()


def test_a_lookup_is_not_repeated_by_a_later_attempt(place, tmp_path):
    kind, url, space = place
    made = kind(url, space, "/")
    made.set("tea", 2.5, None)
    file = pipeline_runs.written(
        tmp_path,
        f"sqlite:///{tmp_path}/ledger.db",
        f"""steps:
  - lookup: {{at: '{url}', space: {space}, key: message.item}}
    into: price
  - store: {{at: '{url}', space: {space}, key: "join('/', ['seen', message.item])", value: message.id, add: true, ttl: 1h}}
  - name: fails
    sql:
      database: sqlite:///{tmp_path}/shop.db
      statement: INSERT INTO sold (price) VALUES (:price)
      parameters: {{price: message.price}}
sinks:
  - stdout:
""",
        [{"id": 1, "item": "tea"}],
    )
    (failed,) = pipeline_runs.run(file)
    assert "no such table" in str(failed.error)
    made.set("tea", 9, None)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE sold (price REAL)")
    (outcome,) = pipeline_runs.run(file)
    assert outcome.value == [{"id": 1, "item": "tea", "price": 2.5}]
    assert made.get("seen/tea") == [1]
    made.close()


def test_files_are_read_and_read_again_when_they_change(tmp_path):
    tmp_path.joinpath("prices.csv").write_text("\ufeffsku,price\ntea,2\n")  # a byte order mark is no part of a name
    tmp_path.joinpath("names.json").write_text(json.dumps({"tea": {"name": "Tea"}}))
    parts = """steps:
  - lookup: {at: 'csv:prices.csv?value=price', key: message.item}
    into: price
  - lookup: {at: 'csv:prices.csv?key=price', key: message.price}
    into: row
  - lookup: {at: 'json:names.json', key: message.item}
    into: name
sinks:
  - stdout:
"""
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    file = pipeline_runs.written(tmp_path, ledger, parts, [{"id": 1, "item": "tea"}, {"id": 2, "item": "soap"}])
    found = {one.key: one.value[0] if one.value else one.error for one in pipeline_runs.run(file)}
    told = {"price": "2", "row": {"sku": "tea", "price": "2"}, "name": {"name": "Tea"}}
    assert found["p:1"] == {"id": 1, "item": "tea", **told}
    assert "finds no key" in str(found["p:2"])
    tmp_path.joinpath("prices.csv").write_text("sku,price\ntea,2\nsoap,44\n")
    pipeline_runs.written(tmp_path, ledger, parts, [{"id": 3, "item": "soap"}])
    (outcome,) = pipeline_runs.run(file)
    assert (outcome.value[0]["price"], outcome.value[0]["name"]) == ("44", None)


@each("row", ["soap,3,4", "soap", "soap," + "x" * 200_000])
def test_a_row_that_does_not_fit_is_told_and_finds_no_wrong_value(tmp_path, row):
    file = tmp_path / "prices.csv"
    file.write_text("sku,price\ntea,2\n")
    values = files.CsvValues("csv:prices.csv", "", tmp_path)
    file.write_text(f"sku,price\ntea,2\n{row}\n")
    for use in (lambda: values.get("soap"), lambda: files.CsvValues("csv:prices.csv", "", tmp_path)):
        with pytest.raises(ValueError, match=r"prices\.csv(: line 3 has more or fewer values| is not CSV)"):
            use()


MESSAGES = [{"id": n, "name": f"n{n}"} for n in range(120)]


def effects_of(ledger):
    """The step that makes an effect of this ledger's own, which commits with its record."""
    if ledger.scheme == "dynamodb":
        table = f"effects-of-{ledger.url.removeprefix('dynamodb://').partition('?')[0]}"
        put = f"table: {table}, item: '{{id: message.name, n: `1`}}', condition: 'attribute_not_exists(#n)'"
        return f"steps:\n  - put: {{{put}, names: {{'#n': id}}}}\n"
    _, _, schema = ledger.url.partition("?schema=")
    table = f"{schema}.effects" if schema else "effects"
    return f"""steps:
  - sql:
      statement: "INSERT INTO {table} (name) VALUES (:name) -- not :this, nor ':that'"
      parameters: {{name: message.name}}
    into: inserted
  - filter: {{where: message.inserted.count == `1`}}
"""


@pytest.mark.sampled(ledger=1)
def test_an_effect_in_the_ledgers_database_is_made_once_over_kills(ledger, tmp_path):
    file = pipeline_runs.written(tmp_path, ledger.url, effects_of(ledger), MESSAGES)
    pipeline_runs.storm(file)
    assert ledger.spent() == {one["name"]: 1 for one in MESSAGES}


def test_rows_are_the_result_of_a_statement(tmp_path):
    place = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(place)) as shop:
        shop.execute("CREATE TABLE prices (item TEXT, price REAL)")
        shop.execute("INSERT INTO prices VALUES ('tea', 2.5)")
        shop.commit()
    parts = f"""steps:
  - sql:
      database: sqlite:///{place}
      statement: SELECT price, :item || ':x' AS named FROM prices WHERE item = :item
      parameters: {{item: message.item}}
    into: found
sinks:
  - stdout:
"""
    messages = [{"id": 1, "item": "tea"}, {"id": 2, "item": "' OR 1=1 --"}]
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
    found = {one.key: one.value[0]["found"] for one in pipeline_runs.run(file)}
    assert found["p:1"] == {"rows": [{"price": 2.5, "named": "tea:x"}], "count": 1}
    assert found["p:2"]["rows"] == []


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_another_database_gets_the_derived_key(kind, postgres15, mariadb, tmp_path):
    table, server = f"pipeline_other_{next(NAMES)}", postgres15 if kind == "postgresql" else mariadb
    ask = lambda text: server.sql(text, database="test")
    ask(f"CREATE TABLE {table} (op VARCHAR(64) PRIMARY KEY, note VARCHAR(64))")
    ignore, conflict = ("INTO", " ON CONFLICT DO NOTHING") if kind == "postgresql" else ("IGNORE INTO", "")
    parts = f"""steps:
  - name: note
    sql:
      database: {server.url}
      statement: "INSERT {ignore} {table} (op, note) VALUES (:onceward_key, :note){conflict}"
      parameters: {{note: message.note}}
"""
    messages = [{"id": n, "note": "100% of 'it'"} for n in range(3)]
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
    for status in ("done", "replayed"):
        assert [one.status for one in pipeline_runs.run(file)] == [status] * 3
    assert [tuple(row) for row in ask(f"SELECT note FROM {table}")] == [("100% of 'it'",)] * 3


def test_items_go_into_a_table_beside_another_ledger(dynoxide, aws, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynoxide.url)
    table = dynoxide.table(f"pipeline-put-{next(NAMES)}", {"id": "N"})
    parts = f"steps:\n  - put: {{table: {table}, condition: 'attribute_not_exists(id)'}}\n"
    messages = [{"id": 1, "price": 2.5, "tags": ["a", None, True], "more": {"x": "y", "N": [2.0, 1e20]}}]
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    (kept,) = dynoxide.items(table)
    assert kept["price"] == {"N": "2.5"}
    assert kept["tags"] == {"L": [{"S": "a"}, {"NULL": True}, {"BOOL": True}]}
    (tmp_path / "ledger.db").unlink()  # as after a crash between the item and its record
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    (tmp_path / "ledger.db").unlink()
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, [{"id": 1, "price": 3}])
    (outcome,) = pipeline_runs.run(file)
    assert "ConditionalCheckFailed" in str(outcome.error)


@each(
    ("step", "says"),
    [
        ("sql: {statement: 'UPDATE a SET b = :b, c = :c', parameters: {b: message.b}}", "no value fills :c"),
        ("sql: {statement: '/* x */ COMMIT'}", "COMMIT ends the transaction"),
        ("sql: {statement: ';COMMIT'}", "COMMIT ends the transaction"),
        *(
            (f"sql: {{statement: '{text}', database: 'mysql://a@h/b'}}", f"{text.split()[0]} can end the transaction")
            for text in ("SET autocommit = 1", "FLUSH TABLES", "ANALYZE TABLE a", "ALTER TABLE a", "EXECUTE x")
        ),
        ("sql: {statement: '/*M! ALTER */ TABLE a', database: 'mysql://a@h/b'}", "MySQL runs what is in a comment"),
        ("sql: {statement: 'UPDATE a SET b = 1; COMMIT'}", "more than one statement"),
        ("sql: {statement: 'prepare transaction $$x$$'}", "PREPARE ends the transaction"),
        ("http: {url: 'https://x/', headers: {Authorization: \"Bearer x\\n\"}}", "no header takes"),
        ("sql: {statement: 'SELECT 1', database: 'sqlite:///'}", "name a file"),
        ("http: {url: 'http://a/{id}'}", "no value fills {id}"),
        ("http: {url: 'http://{host}/', path: {host: message.host}}", "must be a part of the path"),
        ("http: {url: 'http://a/', headers: {idempotency-key: x}}", "onceward itself writes it"),
        ("send: {to: {sqs: {queue: a.fifo}}}", "give group="),
        ("lookup: {at: 'csv:a.csv?key=no', key: message.id}", "has no column 'no'"),
        ("store: {at: 'csv:a.csv', key: message.id}", "values of csv are only read"),
        ("filter: {where: message.id}\nsinks:\n  - s3: {bucket: 'a/b'}", "is not the name of a bucket"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path, monkeypatch, step, says):
    monkeypatch.setenv("KAFKA_SERVERS", "localhost:9092")
    tmp_path.joinpath("a.csv").write_text("a,b\n")
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", f"steps:\n  - {step}\n", [])
    with pytest.raises(PipelineInvalid) as found:
        load(file)
    assert says in str(found.value)
    assert found.value.mistakes[0].place.line == 7 + step.count("\n")


def test_statements_through_a_pooler_need_no_more_sessions_than_it_has(postgres15, tmp_path, request):
    """PgBouncer gives each transaction another session."""
    bouncer = PgBouncer(postgres15)
    request.addfinalizer(bouncer.stop)
    table = f"debits_{bouncer.port}"
    parts = f"concurrency: 6\nsteps:\n  - sql: {{statement: 'INSERT INTO {table} VALUES (:id)', parameters: {{id: message.id}}}}\n"
    file = pipeline_runs.written(tmp_path, f"{bouncer.url}?schema=sessions_{bouncer.port}", parts, MESSAGES[:12])
    with psycopg.connect(bouncer.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id int)")
        assert [one.status for one in pipeline_runs.run(file)] == ["done"] * 12
        made = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}").fetchone()
    assert made == (12, 12)
