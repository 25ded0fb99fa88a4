"""A campaign on Procrastinate: workers are killed, and the databases of jobs and of the ledger are restarted in the middle."""

import sys
from pathlib import Path

import psycopg
import pytest
from procrastinate import App, SyncPsycopgConnector
from psycopg.types.json import Jsonb

from faults.campaign import campaign, own_ledger
from onceward import Once
from servers.postgres import Postgres

pytestmark = pytest.mark.nightly

WORKER = Path(__file__).parent.parent / "support/workers/procrastinate_worker.py"
DEFER = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args) VALUES ('default', 'handle', 0, %s)"


@pytest.fixture
def server():
    """A PostgreSQL that has Procrastinate's tables."""
    made = Postgres()
    schema = App(connector=SyncPsycopgConnector()).schema_manager.get_schema()
    with psycopg.connect(made.url) as connection:
        connection.execute(schema.replace("%%", "%"))
    yield made
    made.stop()


def test_each_job_takes_effect_once_on_procrastinate(server, tmp_path, request):
    def do(statement, *values):
        with psycopg.connect(server.url) as connection, connection.cursor() as cursor:
            cursor.executemany(statement, values) if values else cursor.execute(statement)
            return None if cursor.description is None else cursor.fetchall()

    def redrive(_):
        once = Once(ledger.url)
        for record, _ in once.ledger.records(status="PARKED"):
            once.ledger.unpark(record.key)
        once.close()
        do("UPDATE procrastinate_jobs SET status = 'todo' WHERE status = 'failed' AND task_name = 'handle'")

    def restart():
        server.crash()
        server.start()

    with own_ledger("redis", request, tmp_path) as (ledger, its_server):
        campaign(
            ledger,
            its_server,
            tmp_path,
            command=[sys.executable, WORKER],
            publish=lambda numbers: do(DEFER, *((Jsonb({"order": {"id": number}}),) for number in numbers)),
            left=lambda: do(
                "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND task_name = 'handle'"
            )[0][0],
            restart=restart,
            redrive=redrive,
            environment={"PROCRASTINATE": server.url},
        )
