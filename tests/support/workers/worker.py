"""What processes of tests run on a ledger: ``python worker.py WHAT URL ARGUMENT…``."""

import asyncio
import itertools
import json
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


def transact(url, count):
    """Go through all keys, of both kinds and in any order, until every one is completed."""
    ledger = ledgers.at(url)
    once = Once(url, lease=ledger.lease)
    say("ready")
    left = [(kind, number) for kind in ("once", "claim") for number in range(int(count))]
    while left:
        random.shuffle(left)
        left = [key for key in left if not _done(once, ledger, key)]


def _done(once, ledger, key):
    kind, number = key
    time.sleep(random.random() * 0.02)
    try:
        if kind == "once":
            ledger.claim_and_spend(once, key, f"{kind}{number}", number)
        else:
            with once.claim(key) as claim:
                time.sleep(random.random() * 0.08)
                ledger.spend(claim, f"{kind}{number}", number)
    except Completed as done:
        if done.result != number:
            raise RuntimeError(f"{key} was answered with {done.result!r}") from done
    except (Busy, LeaseLost):
        return False
    return True


def zombie(url):
    """Hold two keys that an heir takes over meanwhile; one of them is renewed as soon as the process runs again."""
    ledger = ledgers.at(url)
    once = Once(url, lease=ledger.lease)
    spent = once.acquire("spent")
    told = []
    try:
        with once.claim("taken") as taken:
            say("claimed")
            sys.stdin.readline()
            told.append("lost" if spent.lost and taken.lost else "held")
            for end in (
                lambda: ledger.spend(spent, "spent", "zombie"),
                spent.extend,
                spent.release,
                spent.park,
                lambda: spent.complete("zombie"),
            ):
                try:
                    end()
                    told.append("made")
                except LeaseLost:
                    told.append("refused")
            taken.complete("zombie")
    except LeaseLost:
        told.append("LeaseLost")
    say(*told)


def patient(url):
    """Hold a key, and complete it after the pause, whoever was there meanwhile."""
    try:
        with Once(url, lease=ledgers.at(url).lease).claim("left") as claim:
            say("claimed")
            sys.stdin.readline()
            claim.complete("late")
    except LeaseLost:
        say("LeaseLost")
    else:
        say("completed")


def _logged(log, key):
    append(log, key)
    time.sleep(0.001)
    return key


def survive(url, log, count):
    """Go through all keys, with effects of both kinds, although the server is killed and started again."""
    ledger = ledgers.at(url)
    once = Once(url, lease=20, on_busy=40.0)  # longer than a server takes to recover
    left = list(range(int(count)))
    while left:
        random.shuffle(left)
        left = [key for key in left if not _survived(once, ledger, log, key)]
    say("done")


def _survived(once, ledger, log, key):
    try:
        assert once.run(key, _logged, log, key) == key
        time.sleep(0.01)
        ledger.claim_and_spend(once, key, str(key), key)
    except Completed as done:
        return done.result == key
    except (Busy, StoreError, *ledger.away):
        return False
    return True


def skewed(url, name):
    """The parent holds "live" for 120 s and has completed "done" with a retention of 120 s."""
    summer = time.localtime().tm_isdst
    say("summer" if summer else "no summer")
    sys.stdin.readline()
    once = Once(url, lease=6.0, retention=120.0)

    def met(key, **options):
        try:
            once.acquire(key, **options)
        except Busy:
            return ("busy",)
        except Completed as done:
            return ("replayed", done.result)
        return ("claimed",)

    told = [("time", time.time()), ("live", *met("live")), ("done", *met("done"))]
    start = os.times().elapsed  # not a clock that can be faked
    is_busy = met("live", on_busy=1.0) == ("busy",)
    told.append(("waited", round(os.times().elapsed - start, 1) if is_busy else "stolen"))
    once.acquire(("own", name)).complete(name)
    told.append(("own", "held" if met(("own", name)) == ("replayed", name) else "forgotten"))
    with once.claim(("long", name)) as claim:
        say("long")
        sys.stdin.readline()
        told.append(("lost", claim.lost))
    told.append(("changed", summer != time.localtime().tm_isdst))
    for words in told:
        say(*words)


def prefork(url, log):
    lease = ledgers.at(url).lease
    once = Once(url, lease=30, on_busy=30.0)
    once.run(0, _logged, log, 0)

    async def handle():
        append(log, "async")

    asyncio.run(once.run_async("async", handle))  # leaves a thread for coroutines, or connections of a closed loop
    with once.claim("held", lease=lease) as claim:  # starts the heartbeat thread
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    _in_child(once, log, lease)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        for key in range(50):
            assert once.run(key, _logged, log, key) == key
        for child in children:
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        assert not claim.lost, "the children held theirs for longer than its lease"
    asyncio.run(once.run_async("async", handle))
    say("done")


def _in_child(once, log, lease):
    for key in range(50):
        assert once.run(key, _logged, log, key) == key

    async def handle(line):
        append(log, line)

    async def both():
        await once.run_async("shared", handle, "shared")
        await once.run_async(("own", os.getpid()), handle, f"own {os.getpid()}")

    asyncio.run(both())
    with once.claim(("long", os.getpid()), lease=lease) as claim:  # a heartbeat thread of the child's own
        time.sleep(lease + 0.3)
        assert not claim.lost


def batch(url, log, what):
    """Handle a batch that hangs in its middle, or go on with it."""

    def handle(order):
        append(log, order["id"])
        if what == "hang" and order["id"] == "hang":
            time.sleep(600)

    once = Once(url, lease=1.5)  # a busy machine stops a process for seconds
    records = [{"id": name} for name in ("a", "b", "hang", "c", "d")]
    found = {}
    while len(found) < len(records):
        left = [record for record in records if record["id"] not in found]
        for outcome in once.batch(handle, key="order.id", name="b").run(left):
            if outcome.ok:
                found[outcome.record["id"]] = outcome.status
        time.sleep(0.05)
    say(json.dumps(found))


def checkpoint(url, log, moment, lease):
    def write(items):
        for item in items:
            append(log, item["id"])
        if moment == "flushed":
            say("flushed")
            sys.stdin.readline()

    with Once(url, lease=float(lease)).checkpoint(write, key="item.id", name="sink") as sink:
        for number in range(4):
            answer = sink.add({"id": number})
            if moment == "never":
                say(answer)
        if moment == "buffered":
            say("buffered")
            sys.stdin.readline()
    say("done")


def per(url, log, offset):
    @Once(url).per("1h", "report", offset=float(offset))
    def report():
        append(log, "run")
        return "done"

    say(time.time())
    say(report())


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
