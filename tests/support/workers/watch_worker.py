"""A watcher that looks every 0.1 s, appends what it tells to a file, and ends at the end of its standard input.

``watch_worker.py URL LOG LEASE [hang]``: with ``hang`` it says that it tells, and never comes back.
"""

import sys
import threading
import time

from onceward import Once
from onceward.watch import Watcher

url, log, lease, *mode = sys.argv[1:]
ended = threading.Event()


def tell(notice):
    if mode:
        print("telling", flush=True)
        time.sleep(3600)
    with open(log, "a") as file:
        file.write("".join(f"{notice.event} {one.kind} {one.subject}\n" for one in notice.incidents))


def wait_for_end():
    sys.stdin.read()
    ended.set()


threading.Thread(target=wait_for_end, daemon=True).start()
once = Once(url)
watcher = Watcher(once, [tell], doctor=False, lease=float(lease))
print("ready", flush=True)
while not ended.wait(0.1):
    for error in watcher.round().errors:
        print(error, file=sys.stderr)
once.close()
