"""A task of Dramatiq whose worker is told to stop; its first run takes long."""

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from onceward import Once
from onceward.dramatiq import exactly

PLACE = Path(os.environ["SIGNALLED_PLACE"])
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


broker = RedisBroker(url=os.environ["SIGNALLED_REDIS"], namespace=f"signalled-{PLACE.name}")
dramatiq.set_broker(broker)
actor = dramatiq.actor(run, notify_shutdown=True, max_retries=0, min_backoff=100, broker=broker)
guarded_actor = exactly(once, key="order", name="signalled")(actor)
