"""Handles keys that send three messages each, until all are sent: ``outbox_crowd.py URL JOURNAL KEYS LEASE LIFE``.

It is killed after a LIFE of so many seconds. A message says of which key and attempt it is. Some attempts fail after they have sent. The send lease is short.
"""

import random
import signal
import sys
import time

from onceward import Busy, Claim, Once
from onceward.outbox import Relay, drain, register, sending
from queues.boxes import JournalTarget

url, journal, count, lease = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
sending.LONGEST_SEND = 4.0  # a DynamoDB server shows its clock in seconds
sending.SENT_WITHIN, sending._SPARE, sending.FIRST_PAUSE = 0.4, 0.1, 0.05
pause = lambda body: time.sleep(random.random() * 0.01)  # long enough to be killed in, before and after
register("journal", lambda address: JournalTarget(address, journal, pause, pause))
once = Once(url, lease=lease)


@once(key="n", name="crowd")
def handle(n, claim: Claim):
    for number in range(3):
        claim.send("journal:" + "ab"[number % 2], f"{n}/{claim.attempt}/{number}")
    if random.random() < 0.3:
        raise ValueError


keys = list(range(count))
random.shuffle(keys)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[5]))  # kills; 0: never
with Relay(once, every=0.2):
    while keys:
        n = keys.pop(0)
        try:
            handle(n)
        except (Busy, ValueError):
            keys.append(n)
            time.sleep(0.01)
    while any(record.unsent for record, _ in once.ledger.records()):
        drain(1)
        time.sleep(0.1)
