"""Relays what is due to a journal, a hundredth of a second for each message: ``relay_worker.py URL JOURNAL``.

It says when it is ready, and goes on until it is killed or its input ends. Its send leases are short.
"""

import os
import sys
import time

from onceward import Once
from onceward.outbox import Relay, drain, register, sending
from queues.boxes import JournalTarget

url, journal = sys.argv[1:]
sending.LONGEST_SEND = 4.0  # a DynamoDB server shows its clock in seconds
sending.SENT_WITHIN, sending._SPARE, sending.LONGEST_PAUSE = 0.4, 0.1, 2.0
register("journal", lambda address: JournalTarget(address, journal, after=lambda body: time.sleep(0.01)))
with Relay(Once(url), every=0.2):
    os.write(1, b"ready\n")
    sys.stdin.read()
drain(30)
