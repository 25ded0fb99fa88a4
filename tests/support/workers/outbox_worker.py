"""Handles a key that sends two messages to a journal: ``outbox_worker.py URL JOURNAL HOW``.

``before`` and ``after`` say when it stops at the first message, and waits to be killed; ``slow`` takes a second for it; ``all``
sends everything, then exits. The send lease is short.
"""

import os
import sys
import time

from onceward import Once, current
from onceward.outbox import drain, register, sending
from queues.boxes import JournalTarget

url, journal, how = sys.argv[1:]
sending.LONGEST_SEND = 4.0  # a DynamoDB server shows its clock in seconds
sending.SENT_WITHIN, sending._SPARE = 0.4, 0.1


def say(text):
    os.write(1, f"{text}\n".encode())  # at once, from any thread


def at(when):
    def stop(body):
        if body == "1" and how in {when, "slow"}:
            say(when)
            time.sleep(1 if how == "slow" else 600)

    return stop


register("journal", lambda address: JournalTarget(address, journal, at("before"), at("after")))


def place():
    current().send("journal:", 1)
    current().send("journal:", 2)
    return "placed"


once = Once(url, lease=4.0, name="n")
say(once.run("7", place))
say(drain(60))
