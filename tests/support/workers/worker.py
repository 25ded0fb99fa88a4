"""What processes of tests run on a ledger: ``python worker.py WHAT URL ARGUMENT…``."""

import itertools
import os
import random
import sys
import time

from onceward import Busy, Completed, LeaseLost, Once, ResultNotRecorded, StoreError, current
from servers.wrong_clocks import mend_sleep
from stores import ledgers


def say(*words):
    print(*words, flush=True)


def append(path, line):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, f"{line}\n".encode())
    finally:
        os.close(log)


class Failover:
    """Goes twice through keys of others while the server fails. The log has each effect, outcome and commit, with the fence on Redis."""

    def __init__(self, url, log, lease, pace):
        self.in_sql = not url.startswith("redis:")
        self.ledger, self.once = ledgers.at(url), Once(url, name="k", lease=float(lease))
        self._log, self._pace, self._runs = log, float(pace), itertools.count()
        self._connection = None  # of its own for transactions, made anew when it was lost

    def note(self, *words):
        append(self._log, " ".join(map(str, words[: 3 if self.in_sql else 4])))

    def handle(self, key):
        value = f"{os.getpid()}-{next(self._runs)}"
        self.note("effect", key, value, current().fence)
        time.sleep(random.random() * self._pace)
        return value

    def deliver(self, key):
        """Return whether this delivery is done."""
        try:
            self.note("told", key, self.once.run(key, self.handle, key), "-")
        except (Busy, LeaseLost, ResultNotRecorded):
            return True  # another worker has it, or it is told of by nobody
        except StoreError:
            time.sleep(0.05)
            return False
        return True

    def transact(self, key):
        """Return whether this delivery is done."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self.ledger.connect()
            with self.once.transaction(key, self._connection):
                self._connection.execute("INSERT INTO effects VALUES (%s)", (key,))
        except Busy:
            return True
        except Completed:
            pass
        except (StoreError, *self.ledger.away):
            time.sleep(0.05)
            return False
        self.note("committed", key, "-")
        return True


def failover(url, log, count, lease, pace="0.05"):
    worker, keys = Failover(url, log, lease, pace), list(range(int(count)))
    for _ in range(2):
        random.shuffle(keys)
        for key in keys:
            while not worker.deliver(key):
                pass
            while worker.in_sql and key % 4 == 0 and not worker.transact(f"tx{key}"):
                pass
    say("done")
    worker.once.close()
    os._exit(0)  # past the collector, which warns of connections


def pipeline(file):
    """Run a pipeline over lines until all of it is done."""
    from commands.pipeline_runs import run

    say("ready")
    for _ in range(300):
        failed = [one for one in run(file) if not one.ok]
        if not failed:
            return
        print(failed[0].status, failed[0].error, file=sys.stderr)
    sys.exit(1)


def broker(url, effects, shop, place, orders):
    """Append each order's id to a file."""
    from queues import shops

    def charge(order):
        time.sleep(0.05)
        append(effects, order["id"])

    made = object.__new__(getattr(shops, shop))
    made.url, made.orders = place, orders
    made.worker(Once(url, lease=5, name="shop"), charge, concurrency=2).run()


if __name__ == "__main__":
    mend_sleep()
    what, *arguments = sys.argv[1:]
    globals()[what](*arguments)
