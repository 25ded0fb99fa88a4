"""Go twice through keys that others go through as well, while the server fails: ``python redis_failover.py URL LOG COUNT LEASE [PACE]``.

The log gets ``effect KEY VALUE FENCE`` for each run of a handler, and ``told KEY VALUE -`` for each outcome.
"""

import itertools
import os
import random
import select
import sys
import time

from onceward import Busy, LeaseLost, Once, ResultNotRecorded, StoreError, current

# time.sleep() asks for an absolute time, which libfaketime turns into one that the kernel refuses.
time.sleep = lambda seconds: select.select((), (), (), seconds) and None

url, path, count, lease, *pace = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
runs = itertools.count()
once = Once(url, name="k", lease=float(lease))


def note(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


def handle(key):
    value = f"{os.getpid()}-{next(runs)}"
    note("effect", key, value, current().fence)
    time.sleep(random.random() * float(*pace or [0.05]))
    return value


def deliver(key):
    """Return whether this delivery is done."""
    try:
        note("told", key, once.run(key, handle, key), "-")
    except (Busy, LeaseLost, ResultNotRecorded):
        return True  # another worker has it, or it is told of by nobody
    except StoreError:
        time.sleep(0.05)
        return False
    return True


for _ in range(2):
    keys = list(range(int(count)))
    random.shuffle(keys)
    for key in keys:
        while not deliver(key):
            pass
print("done", flush=True)
