"""Handles keys in three steps until all are done: ``steps_worker.py URL JOURNAL KEYS LEASE LIFE``.

It is killed after a LIFE of so many seconds. It writes a line to the journal for each effect, and one for each step that has returned.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from onceward import NOT_MADE, Busy, Claim, Made, Once, Parked

url, journal, count, lease = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
once = Once(url, lease=lease)
out = os.open(journal, os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def note(*words):
    os.write(out, (" ".join(map(str, words)) + "\n").encode())


def effect(kind, n, attempt):
    time.sleep(random.random() * 0.01)  # long enough to be killed in, before and after
    note("effect", kind, n, attempt)
    time.sleep(random.random() * 0.01)
    return f"{kind} {n} {attempt}"


def find(_, kind, n, __):
    """Ask the downstream, which is the journal."""
    made = [line.split() for line in journal.read_text().splitlines() if line.startswith(f"effect {kind} {n} ")]
    return Made(" ".join(made[0][1:])) if made else NOT_MADE


def handle(n, claim: Claim):
    made = {}
    for kind, on_lapse in (("retry", "retry"), ("ask", find), ("park", "park")):
        made[kind] = claim.step(kind, effect, kind, n, claim.attempt, on_lapse=on_lapse)
        note("returned", kind, n, made[kind])
    return made


guarded = once(key="n", name="steps")(handle)
keys = list(range(count))
random.shuffle(keys)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[5]))  # kills; 0: never
while keys:
    number = keys.pop(0)
    try:
        guarded(number)
    except Busy:
        keys.append(number)
        time.sleep(0.01)
    except Parked:
        note("parked", number)
