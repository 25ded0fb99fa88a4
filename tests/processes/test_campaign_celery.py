"""Campaigns on Celery: workers are killed, and the broker and the ledger are restarted in the middle."""

import contextlib
import json
import sys
import threading

import pytest
from celery import Celery

from faults.campaign import Crew, campaign, own_ledger
from onceward import Once, OncewardError
from places import WORKERS
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis

pytestmark = pytest.mark.nightly

WORKER = [
    sys.executable,
    "-m",
    "celery",
    "--workdir",
    WORKERS,
    "-A",
    "celery_campaign",
    "worker",
    "-c",
    2,
    "-l",
    "WARNING",
]
# RabbitMQ refuses a second worker of one name.
WORKER = [
    "sh",
    "-c",
    'exec "$@" -n "$$@%h"',
    "sh",
    *WORKER,
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
]
DEAD = "celery.onceward-dead"


def fire(broker, usual, left, request, folder, *, waiting=None):
    """Run a campaign. A worker that reads the dead letters redrives the poisoned messages.

    If the broker loses tasks, ``waiting`` says how many it has but for dead letters; the sender sends again what is gone.
    """
    environment = {"ONCEWARD_BROKER": broker.url, "PYTHONWARNINGS": "default"}
    client = Celery("client", broker=broker.url)
    client.conf.broker_transport_options = {"confirm_publish": True}
    with contextlib.ExitStack() as ending, own_ledger(usual, request, folder) as (ledger, server):
        redriving = []
        told = {"ledger": ledger.url, "journal": str(folder / "journal"), "fix": str(folder / "fixed"), "poison": 50}
        known = environment | {"ONCEWARD_CAMPAIGN": json.dumps(told)}

        def publish(numbers):
            with client.producer_or_acquire() as producer:
                for number in numbers:
                    client.send_task("campaign.handle", ({"id": number},), producer=producer, ignore_result=True)

        def redrive(_):
            once = Once(ledger.url)
            for record, _ in once.ledger.records(status="PARKED"):
                with contextlib.suppress(OncewardError):  # a worker was faster
                    once.ledger.unpark(record.key)
            once.close()
            if not redriving:
                redriving.append(ending.enter_context(Crew(folder / "redriving.log", [[*WORKER, "-Q", DEAD]], **known)))

        if waiting is not None:
            over = threading.Event()
            again = threading.Thread(target=_send_again, args=(ledger.url, waiting, publish, over), daemon=True)
            ending.callback(again.join)
            ending.callback(over.set)
            again.start()
        campaign(
            ledger,
            server,
            folder,
            command=WORKER,
            publish=publish,
            left=left,
            restart=broker.restart,
            redrive=redrive,
            concurrency=2,
            environment=environment,
        )


def _send_again(url, waiting, publish, over):
    """Send again what no queue has and what has not ended: Celery loses a task when a worker dies as it takes it, the second time, too.

    Numbers are sent upwards, so what is above the last record may be on its way.
    """
    once = Once(url)
    before = set()
    while not over.wait(3):
        with contextlib.suppress(Exception):  # the broker or the ledger is away
            is_empty = not waiting()
            known = {
                int(record.key.rpartition(":")[2]): record.status for record, _ in once.ledger.records("campaign:")
            }
            ended = {number for number, status in known.items() if status in {"COMPLETED", "PARKED"}}
            gone = set(range(max(known, default=-1) + 1)) - ended if is_empty else set()
            publish(sorted(gone & before))
            before = gone
    once.close()


def test_each_task_takes_effect_once_over_redis_under_fire(request, tmp_path):
    broker = Redis(appendonly="yes", appendfsync="always")

    def left():
        with broker.client() as client:
            return client.llen("celery") + client.llen(DEAD) + client.hlen("unacked")

    def waiting():
        with broker.client() as client:
            return client.llen("celery") + client.hlen("unacked")

    try:
        fire(broker, "postgresql", left, request, tmp_path, waiting=waiting)
    finally:
        broker.stop()


def test_each_task_takes_effect_once_over_rabbitmq_under_fire(request, tmp_path):
    broker = Rabbitmq()

    def left():
        held = broker.held()
        return held["celery"] + held.get(DEAD, 0)

    try:
        fire(broker, "mysql", left, request, tmp_path)
    finally:
        broker.stop()
