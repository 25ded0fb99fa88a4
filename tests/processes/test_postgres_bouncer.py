"""Statements of pipelines through a PgBouncer, which gives each transaction another session."""

import asyncio
import collections

import psycopg
import pytest

from onceward.pipelines import load
from onceward.pipelines.pipeline import PipelineRun
from servers.postgres import PgBouncer


@pytest.fixture
def bouncer(postgres15):
    made = PgBouncer(postgres15)
    yield made
    made.stop()


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
