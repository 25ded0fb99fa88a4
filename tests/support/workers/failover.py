"""Goes twice through keys of others while the server fails: URL LOG COUNT LEASE [PACE]. The log has each effect, outcome and commit, with the fence on Redis."""

import itertools
import os
import random
import sys
import time

from onceward import Busy, Completed, LeaseLost, Once, ResultNotRecorded, StoreError, current
from servers.wrong_clocks import mend_sleep
from stores import ledgers

mend_sleep()
url, path, count, lease, *pace = sys.argv[1:]
IN_SQL = not url.startswith("redis:")
ledger = ledgers.at(url)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
runs = itertools.count()
once = Once(url, name="k", lease=float(lease))


def note(*words):
    os.write(log, (" ".join(map(str, words[: 3 if IN_SQL else 4])) + "\n").encode())


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


class Hand:
    """A connection of its own for transactions, made anew when it was lost."""

    _connection = None

    def deliver(self, key):
        """Return whether this delivery is done."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = ledger.connect()
            with once.transaction(key, self._connection):
                self._connection.execute("INSERT INTO effects VALUES (%s)", (key,))
        except Busy:
            return True
        except Completed:
            pass
        except (StoreError, *ledger.away):
            time.sleep(0.05)
            return False
        note("committed", key, "-")
        return True


def has_table():
    here = "database()" if url.startswith("mysql:") else "current_schema()"  # others have their own
    found = f"SELECT count(*) FROM information_schema.tables WHERE table_name = 'effects' AND table_schema = {here}"
    while IN_SQL:
        try:
            with ledger.connect() as connection:
                return connection.execute(found).fetchall()[0][0] > 0
        except ledger.away:  # the server can be away already
            time.sleep(0.05)
    return False


found = has_table()
hand = Hand()
for _ in range(2):
    keys = list(range(int(count)))
    random.shuffle(keys)
    for key in keys:
        while not deliver(key):
            pass
        while found and key % 4 == 0 and not hand.deliver(f"tx{key}"):
            pass
print("done", flush=True)
once.close()
os._exit(0)  # past the collector, which warns of connections
