"""One worker of Celery of `brokers.py`, as a process: it handles so many tasks, and prints the seconds that took, and its CPU.

Run by brokers.py: python benchmarks/brokers_celery.py STATION CASE BROKER DATABASE MESSAGES
"""

import json
import sys
import time
from threading import Lock

from celery import Celery
from celery.worker import state
from psycopg_pool import ConnectionPool

from onceward import Claim, Completed, Once
from onceward.celery import exactly

CASE, BROKER, DATABASE, MESSAGES = *sys.argv[2:5], int(sys.argv[5])
INSERT = "INSERT INTO effects (id) VALUES (%s)"
SIDE_BY_SIDE = 10  # threads
pool = ConnectionPool(DATABASE, min_size=SIDE_BY_SIDE, max_size=SIDE_BY_SIDE, kwargs={"autocommit": True}, open=False)
once = Once(DATABASE.replace("postgres://", "postgresql://"), lease=60)
app = Celery(broker=BROKER)
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True, worker_prefetch_multiplier=2
)
app.conf.update(worker_redirect_stdouts=False, broker_transport_options={"confirm_publish": True})
began: list[tuple[float, float]] = []
left, lock = [MESSAGES], Lock()


def begin() -> None:
    """Note the first task."""
    with lock:
        if not began:
            began.append((time.perf_counter(), time.process_time()))


def done() -> None:
    """Note that a task is handled; after the last one the worker stops."""
    with lock:
        left[0] -= 1
        if not left[0]:
            wall, cpu = began[0]
            print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
            state.should_stop = 0


def bare(order: dict) -> None:
    """Commit the effect alone."""
    begin()
    with pool.connection() as connection:
        connection.execute(INSERT, (order["id"],))
    done()


def together(order: dict, claim: Claim) -> None:
    """Commit the effect with its completion."""
    begin()
    with pool.connection() as connection, claim.transaction(connection):
        connection.execute(INSERT, (order["id"],))
    done()


def whole(order: dict) -> None:
    """Commit the effect with its claim and its completion."""
    begin()
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
