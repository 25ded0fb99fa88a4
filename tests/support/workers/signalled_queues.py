"""Tasks of Dramatiq and Procrastinate whose workers are told to stop; the first run of one takes long."""

import asyncio
import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from procrastinate import App, PsycopgConnector

from onceward import Once
from onceward.dramatiq import exactly as exactly_dramatiq
from onceward.procrastinate import exactly as exactly_procrastinate

PLACE = Path(os.environ["SIGNALLED_PLACE"])
REDIS, POSTGRES = os.environ.get("SIGNALLED_REDIS", ""), os.environ.get("SIGNALLED_POSTGRES", "")
LONG = 600  # tenths of a second
once = Once(f"sqlite:///{PLACE / 'ledger.db'}", lease=3)


def begin() -> bool:
    """Note that a run begins; tell whether it is the first."""
    with (PLACE / "begun").open("a+") as begun:
        begun.write(f"{os.getpid()}\n")
        begun.flush()
        begun.seek(0)
        return len(begun.readlines()) == 1


def end() -> None:
    """Note that a run ended."""
    (PLACE / "done").touch()


def run(order: int) -> None:
    """Take long, the first time."""
    for _ in range(LONG if begin() else 0):
        time.sleep(0.1)
    end()


async def run_async(order: int) -> None:
    if begin():
        await asyncio.sleep(LONG / 10)
    end()


if REDIS:
    dramatiq_broker = RedisBroker(url=REDIS, namespace=f"signalled-{PLACE.name}")
    dramatiq.set_broker(dramatiq_broker)
    actor = dramatiq.actor(run, notify_shutdown=True, max_retries=0, min_backoff=100, broker=dramatiq_broker)
    guarded_actor = exactly_dramatiq(once, key="order", name="signalled")(actor)

if POSTGRES:
    app = App(connector=PsycopgConnector(conninfo=POSTGRES))
    guarded_job = exactly_procrastinate(once, key="order", name="signalled")(app.task(run_async, name="run"))
