"""Handles keys in two steps: ``completer_worker.py URL JOURNAL KEYS LEASE ROLE``.

As ``half`` it begins all keys, and waits between the steps of each to be killed. As ``client`` it delivers each key until it is done. As
``plain`` or ``awaited`` it is a completer, which delivers nothing; as ``stuck`` it is one that waits to be killed. It writes to the
journal what it does.
"""

import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path

from onceward import Busy, Claim, Once

url, journal, count, lease, role = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
once = Once(url, lease=lease)
out = os.open(journal, os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def note(*words):
    os.write(out, (" ".join(map(str, words)) + "\n").encode())


def effect(kind, n, attempt):
    note("effect", kind, n, attempt)
    time.sleep(random.random() * 0.01)
    return f"{kind} {n} {attempt}"


def finish(n, claim, charge):
    note("charged", n, charge)
    if role in {"half", "stuck"}:
        note(role, n)
        time.sleep(3600)
    return charge


if role == "awaited":

    async def handle(n: int, note: str, claim: Claim):
        charge = finish(n, claim, await claim.step_async("charge", effect, "charge", n, claim.attempt))
        return [charge, note, await claim.step_async("mail", effect, "mail", n, claim.attempt)]

else:

    def handle(n: int, note: str, claim: Claim):
        charge = finish(n, claim, claim.step("charge", effect, "charge", n, claim.attempt))
        return [charge, note, claim.step("mail", effect, "mail", n, claim.attempt)]


guarded = once(key="n", name="half", keep_input=True)(handle)
print("ready", flush=True)
if role == "half":
    for number in range(count):
        threading.Thread(target=guarded, args=(number, f"note {number}")).start()
elif role == "client":
    keys = list(range(count))
    random.shuffle(keys)
    while keys:
        number = keys.pop(0)
        try:
            guarded(number, f"note {number}")
        except Busy:
            keys.append(number)
            time.sleep(0.01)
else:
    completed = 0
    while journal.read_text().count("effect mail ") < count:
        if role != "awaited":
            completed += once.complete_lapsed(guarded).completed
        else:
            completed += asyncio.run(once.complete_lapsed_async(guarded)).completed
        time.sleep(0.05)
    note("completer", completed)
