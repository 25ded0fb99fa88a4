"""Handles a batch on a ledger: one that hangs in its middle, or the same gone on with."""

import json
import os
import sys
import time

from onceward import Once

path, log, what = sys.argv[1:]
once = Once(f"sqlite:///{path}", lease=1.5)  # a busy machine stops a process for seconds
file = os.open(log, os.O_WRONLY | os.O_APPEND)


def handle(order):
    os.write(file, f"{order['id']}\n".encode())
    if what == "hang" and order["id"] == "hang":
        time.sleep(600)


batch = once.batch(handle, key="order.id", name="b")
records = [{"id": name} for name in ("a", "b", "hang", "c", "d")]
found = {}
while len(found) < len(records):
    for outcome in batch.run([record for record in records if record["id"] not in found]):
        if outcome.ok:
            found[outcome.record["id"]] = outcome.status
    time.sleep(0.05)
print(json.dumps(found))
