"""One worker of Celery of `brokers.py`, as a process: it handles so many tasks, and prints the seconds of each, and of CPU.

Run by brokers.py: python benchmarks/brokers_celery.py STATION CASE BROKER DATABASE MESSAGES POSTMASTER
"""

import json
import sys

from celery import Celery
from celery.worker import state
from psycopg_pool import ConnectionPool

from brokers_meter import Meter
from onceward import Claim, Completed, Once
from onceward.celery import exactly

CASE, BROKER, DATABASE = sys.argv[2:5]
INSERT = "INSERT INTO effects (id) VALUES (%s)"
SIDE_BY_SIDE = 10  # threads
pool = ConnectionPool(DATABASE, min_size=SIDE_BY_SIDE, max_size=SIDE_BY_SIDE, kwargs={"autocommit": True}, open=False)
once = Once(DATABASE.replace("postgres://", "postgresql://"), lease=60)
app = Celery(broker=BROKER)
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True, worker_prefetch_multiplier=2
)
app.conf.update(worker_redirect_stdouts=False, broker_transport_options={"confirm_publish": True})
meter = Meter(*map(int, sys.argv[5:]))


def done() -> None:
    """Note that a task is handled; after the last one the worker stops."""
    if meter.done():
        print(json.dumps(meter.told), flush=True)
        state.should_stop = 0


def bare(order: dict) -> None:
    """Commit the effect alone."""
    meter.begin()
    with pool.connection() as connection:
        connection.execute(INSERT, (order["id"],))
    done()


def together(order: dict, claim: Claim) -> None:
    """Commit the effect with its completion."""
    meter.begin()
    with pool.connection() as connection, claim.transaction(connection):
        connection.execute(INSERT, (order["id"],))
    done()


def whole(order: dict) -> None:
    """Commit the effect with its claim and its completion."""
    meter.begin()
    try:
        with pool.connection() as connection, once.transaction(order["id"], connection, name="whole"):
            connection.execute(INSERT, (order["id"],))
    except Completed:
        return
    done()


handler = {"bare": bare, "guarded": bare, "claim-transaction": together, "once-transaction": whole}[CASE]
if CASE in {"guarded", "claim-transaction"}:
    handler = exactly(once, key="order.id")(handler)
app.task(name="order")(handler)

if __name__ == "__main__":
    pool.open(wait=True)
    worker = app.Worker(pool="threads", concurrency=SIDE_BY_SIDE, loglevel="ERROR", quiet=True, without_gossip=True)
    worker.start()
    pool.close()
    once.close()
