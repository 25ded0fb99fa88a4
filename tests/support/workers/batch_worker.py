"""Handles batches on a ledger: one that hangs in its middle, the same gone on with, or many that others handle, too."""

import json
import os
import random
import sys
import time

from onceward import Once

path, log, what = sys.argv[1:]
once = Once(f"sqlite:///{path}", lease=60 if what == "many" else 1.5)  # a busy machine stops a process for seconds
file = os.open(log, os.O_WRONLY | os.O_APPEND)


def handle(order):
    os.write(file, f"{order['id']}\n".encode())
    if what == "hang" and order["id"] == "hang":
        time.sleep(600)


batch = once.batch(handle, key="order.id", name="b")
if what == "many":
    left = [{"id": f"k{n}"} for n in range(300)]
    while left:
        random.shuffle(left)
        outcomes = batch.run(left[:40])
        left = [outcome.record for outcome in outcomes if not outcome.ok] + left[40:]
else:
    records = [{"id": name} for name in ("a", "b", "hang", "c", "d")]
    found = {}
    while len(found) < len(records):
        for outcome in batch.run([record for record in records if record["id"] not in found]):
            if outcome.ok:
                found[outcome.record["id"]] = outcome.status
        time.sleep(0.05)
    print(json.dumps(found))
