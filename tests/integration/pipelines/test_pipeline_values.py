"""Values by key, in all places that keep them, and statements and items, which take effect once."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time

import psycopg
import pytest

from commands import pipeline_runs
from faults.processes import PATIENCE
from onceward.pipelines import PipelineInvalid, databases, load
from onceward.pipelines.keyvalue import dynamodb, redis
from places import SOURCES
from servers.needs import numbers
from servers.postgres import PgBouncer
from tables import each

pytestmark = pytest.mark.sampled(place=1)
NAMES = numbers()


@pytest.fixture(params=["redis", "dynamodb"])
def place(request):
    """The class of a place, its URL, and a space of this test's own."""
    space = f"space-{next(NAMES)}"
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


def test_a_value_expires(values):
    values.set("short", 1, 1)
    values.set("stays", 1, 3600)
    while values.get("short") is not None:
        time.sleep(0.1)
    assert values.get("stays") == 1


def test_a_postgresql_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setitem(databases._POSTGRES, "connect_timeout", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = databases.Database(f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x")
        with pytest.raises(psycopg.OperationalError, match="timeout"), database.connection():
            pass


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
  - store: {{at: '{url}', space: {space}, key: "join('/', ['seen', message.item])", value: message.id, ttl: 1h}}
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
    assert made.get("seen/tea") == 1
    made.close()


def test_a_file_is_read_and_read_again_when_it_changes(tmp_path):
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"tea": {"name": "Tea"}}))
    parts = "steps:\n  - lookup: {at: 'json:names.json', key: message.item}\n    into: name\nsinks:\n  - stdout:\n"
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    messages = [{"id": 1, "item": "tea"}, {"id": 2, "item": "soap"}, {"id": 3}]
    file = pipeline_runs.written(tmp_path, ledger, parts, messages)
    found = {one.key: one.value[0]["name"] if one.value else one.error for one in pipeline_runs.run(file)}
    assert (found["p:1"], found["p:2"]) == ({"name": "Tea"}, None)
    assert "finds no key" in str(found["p:3"])
    names.write_text(json.dumps({"soap": 44}))
    pipeline_runs.written(tmp_path, ledger, parts, [{"id": 4, "item": "soap"}])
    (outcome,) = pipeline_runs.run(file)
    assert outcome.value[0]["name"] == 44


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
        ("lookup: {at: 'json:a.json', key: message.id}", "a.json is not a JSON object"),
        ("store: {at: 'json:b.json', key: message.id}", "values of json are only read"),
        ("put: {table: t}", "put needs a ledger in DynamoDB"),
        ("filter: {where: message.id}\nsinks:\n  - s3: {bucket: 'a/b'}", "is not the name of a bucket"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path, monkeypatch, step, says):
    monkeypatch.setenv("KAFKA_SERVERS", "localhost:9092")
    tmp_path.joinpath("a.json").write_text("[]")
    tmp_path.joinpath("b.json").write_text("{}")
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
