"""Stops itself inside a step, as a machine that hangs does: ``steps_stopped.py URL LEASE``. Prints what it is told later."""

import os
import signal
import sys
import threading
import time

from onceward import LeaseLost, Once


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    return "the zombie's" * 3_000


try:
    time.sleep(0.001)
except OSError:
    time.sleep = threading.Event().wait  # see worker.py
once = Once(sys.argv[1], lease=float(sys.argv[2]))
claim = once.acquire("k", name="steps")
for name, function in (("pay", stop), ("mail", print)):
    try:
        claim.step(name, function)
    except LeaseLost:
        print(name, "LeaseLost", claim.lost)
