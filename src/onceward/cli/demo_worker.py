"""A worker of the demo: ``python -m onceward.cli.demo_worker FOLDER SECONDS STORE``. It expects to be killed."""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from onceward import Busy, Completed, LeaseLost, Once
from onceward.cli.demo_queue import LEASE, DemoLedger, DemoQueue


def work(folder: Path, seconds: float, store: str) -> None:
    """Handle messages until none is left; each takes about so many seconds."""
    queue = DemoQueue(folder, os.getpid())
    ledger = DemoLedger(folder, store)
    once = Once(ledger.url, lease=LEASE, on_busy=3 * LEASE)
    effects = ledger.connected()
    while queue.left():
        received = queue.receive()
        if received is None:
            time.sleep(0.02)
            continue
        delivery, message = received
        try:
            handle(once, message, queue, effects, ledger.insert, seconds)
            queue.tell("effect")
        except Completed:
            queue.tell("replayed")
        except LeaseLost:
            queue.tell("refused")
            continue  # this worker was a zombie: another worker has the message now
        except Busy:
            queue.tell("busy")
            continue
        queue.acknowledge(delivery)


def handle(once: Once, message: str, queue: DemoQueue, effects: Any, insert: str, seconds: float) -> None:
    """Claim the message, work on it, and commit the effect together with the record."""
    with once.claim(message, name="demo") as claim:
        queue.tell("claimed")
        time.sleep(seconds * random.uniform(0.5, 1.5))
        with claim.transaction(effects):
            effects.execute(insert, (message, os.getpid(), claim.attempt))


if __name__ == "__main__":
    work(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
