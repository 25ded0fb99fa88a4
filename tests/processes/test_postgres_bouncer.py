"""A PgBouncer that is killed and started again while eight workers claim and complete through it."""

import asyncio
import collections
import time

import psycopg
import pytest

from faults.processes import PATIENCE, lines, workers
from onceward import Once
from onceward.core.record import COMPLETED
from onceward.pipelines import load
from onceward.pipelines.databases import Database, Statement
from onceward.pipelines.pipeline import PipelineRun
from servers.postgres import PgBouncer

COUNT, LEASE = 200, 30.0


@pytest.fixture
def bouncer(postgres15):
    made = PgBouncer(postgres15)
    yield made
    made.stop()


@pytest.mark.nightly
def test_a_pooler_that_restarts_loses_and_doubles_nothing(bouncer, postgres15, tmp_path):
    log = tmp_path / "log"
    log.touch()
    schema = f"?schema=restarts_{bouncer.port}"
    with workers("failover.py") as start:
        running = [start(bouncer.url + schema, log, COUNT, LEASE) for _ in range(8)]
        for effects in (20, 60, 100, 140):
            end = time.monotonic() + 6 * PATIENCE  # each kill costs a lease or more
            while log.read_text().count("effect") < effects:
                assert time.monotonic() < end
                time.sleep(0.005)
            bouncer.kill()
            time.sleep(0.1)
            bouncer.start()
        for process in running:
            assert lines(process) == ["done"]
    noted = [line.split() for line in log.read_text().splitlines()]
    runs = collections.Counter(key for what, key, _ in noted if what == "effect")
    assert set(runs.values()) == {1}
    assert len(runs) > 0.9 * COUNT  # a reply that was lost can have made a claim, of which nobody knows
    left = {record.key: record for record, _ in Once(postgres15.url + schema).ledger.records()}
    for what, key, value in noted:
        if what == "told":
            assert (left[f"k:{key}"].status, left[f"k:{key}"].result) == (COMPLETED, f'"{value}"')


def test_a_statement_of_a_pipeline_runs_in_whatever_session_the_pooler_gives(bouncer):
    database = Database(bouncer.url)
    asked = Statement("SELECT pg_backend_pid() AS session", database.dialect)
    sessions = set()
    with database.connection() as connection, psycopg.connect(bouncer.url) as other:
        while len(sessions) < 2:
            for _ in range(
                7
            ):  # psycopg prepares a statement in the server's session when it runs it for the sixth time
                sessions.add(database.execute(connection, asked, {})["rows"][0]["session"])
            other.execute("SELECT 1")  # takes the session that was used last
            sessions.add(database.execute(connection, asked, {})["rows"][0]["session"])
            other.rollback()
    database.close()


def test_statements_of_a_pipeline_need_no_more_sessions_than_the_pooler_has(bouncer, tmp_path):
    table = f"debits_{bouncer.port}"
    (tmp_path / "orders.ndjson").write_text("".join(f'{{"id": {number}}}\n' for number in range(12)))
    (tmp_path / "p.yaml").write_text(
        f"name: p\nledger: {bouncer.url}?schema=sessions_{bouncer.port}\nconcurrency: 6\n"
        "source: {ndjson: {files: [orders.ndjson]}}\nguard: {key: message.id}\nsteps:\n"
        f"  - sql: {{statement: 'INSERT INTO {table} VALUES (:id)', parameters: {{id: message.id}}}}\n"
    )
    outcomes = []
    with psycopg.connect(bouncer.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id int)")
        asyncio.run(PipelineRun(load(tmp_path / "p.yaml"), outcomes.append).run_async())
        made = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}").fetchone()
    assert (collections.Counter(one.status for one in outcomes), made) == ({"done": 12}, (12, 12))
