"""The tests' Celery application: ``ONCEWARD_SHOP`` tells its broker, ledger and folder, with the journal, and ``open`` for tasks that wait."""

import json
import os
import time
from pathlib import Path

from celery import Celery

from onceward import Claim, Once
from onceward.celery import OnceTask, exactly
from queues.celery_workers import queue_settings

GIVEN = json.loads(os.environ["ONCEWARD_SHOP"])
FOLDER = Path(GIVEN["folder"])
once = Once(GIVEN["ledger"], lease=GIVEN.get("lease", 3.0))
app = Celery("shop", broker=GIVEN["broker"], backend=GIVEN["backend"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options=GIVEN.get("transport", {}),
    worker_hijack_root_logger=False,
    beat_schedule={"every-second": {"task": "shop.report", "schedule": 1.0}},
    beat_schedule_filename=str(FOLDER / f"beat-{os.getpid()}"),
)
app.conf.update(GIVEN.get("conf", {}))
if "queue" in GIVEN:
    app.conf.update(queue_settings(**GIVEN["queue"]))


def note(what: str) -> None:
    with os.fdopen(os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as journal:
        journal.write(f"{what}\n")


def wait() -> None:
    while not (FOLDER / "open").exists():
        time.sleep(0.01)


@app.task(name="shop.charge")
@exactly(once, key="order.id")
def charge(order: dict, claim: Claim) -> dict:
    note(f"charge {order['id']}")
    return {"receipt": order["id"], "attempt": claim.attempt}


@app.task(name="shop.by_id", bind=True)
@exactly(once)
def by_id(self, *parts) -> str:
    note(f"by_id {self.request.id}")
    return self.request.id


@app.task(name="shop.slow", bind=True)
@exactly(once, key="order")
def slow(self, order: str) -> int:
    note(f"begin {order}")
    wait()
    note(f"end {order} {self.request.retries}")
    return self.request.retries


@app.task(name="shop.refused", autoretry_for=(Exception,), default_retry_delay=1)
@exactly(once, key="order", max_attempts=1)
def refused(order: str) -> str:
    note(f"refused {order}")
    if not (FOLDER / "fixed").exists():
        raise ValueError(order)
    return order


@app.task(name="shop.asks", bind=True)
@exactly(once, key="order", on_error="park")
def asks(self, order: str) -> int:
    note(f"asks {order} {self.request.retries}")
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    return self.request.retries


@app.task(name="shop.late", bind=True, autoretry_for=(ValueError,), default_retry_delay=1)
@exactly(once, key="order")
def late(self, order: str) -> int:
    note(f"late {order} {self.request.retries}")
    wait()
    if self.request.retries == 0:
        if order == "asks":
            raise self.retry(countdown=1)
        raise ValueError(order)
    return self.request.retries


@app.task(name="shop.counts", bind=True)
@exactly(once)
def counts(self, number: int) -> str:
    note(f"counts {number}")
    return self.replace(self.s(number - 1)) if number else "end"


@app.task(name="shop.based", base=OnceTask, once=once, options={"key": "order"})
def based(order: str) -> str:
    note(f"based {order}")
    return order


@app.task(name="shop.notify")
@exactly(once)
def notify(receipt: dict, task: str = "") -> str:
    note(f"notify {receipt['receipt']} {task}")
    return f"notified {receipt['receipt']}"


@app.task(name="shop.total")
@exactly(once)
def total(receipts: list) -> int:
    note(f"total {len(receipts)}")
    return len(receipts)
