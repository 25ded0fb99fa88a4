"""Statements and items, which take effect once."""

import contextlib
import socket
import sqlite3

import psycopg
import pytest

from commands import pipeline_runs
from onceward.pipelines import PipelineInvalid, databases, load
from servers.needs import numbers
from servers.postgres import PgBouncer
from tables import each

NAMES = numbers()


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
        ("put: {table: t}", "put needs a ledger in DynamoDB"),
        ("filter: {where: message.id}\nsinks:\n  - s3: {bucket: 'a/b'}", "is not the name of a bucket"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path, monkeypatch, step, says):
    monkeypatch.setenv("KAFKA_SERVERS", "localhost:9092")
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
