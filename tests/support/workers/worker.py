"""What the processes of test_processes.py run: ``python worker.py WHAT LEDGER ARGUMENT…``."""

import asyncio
import multiprocessing
import os
import random
import sqlite3
import sys
import threading
import time

from onceward import Busy, Completed, LeaseLost, Once


def say(*words):
    print(*words, flush=True)


def append(path, line):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, f"{line}\n".encode())
    finally:
        os.close(log)


# --- effects that commit with the record --------------------------------------------------------------------------


def transact(ledger, kind, count):
    """Go through all keys in any order until every one is completed."""
    once = Once(f"sqlite:///{ledger}", lease=0.7)
    connection = sqlite3.connect(ledger, timeout=20, isolation_level=None)
    left = list(range(int(count)))
    while left:
        random.shuffle(left)
        left = [key for key in left if not _done(once, connection, kind, key)]


def _done(once, connection, kind, key):
    try:
        if kind == "once":
            with once.transaction(key, connection) as tx:
                time.sleep(random.random() * 0.02)
                connection.execute("INSERT INTO effects VALUES (?, ?)", (key, os.getpid()))
                tx.result = key
        else:
            with once.claim(key) as claim:
                time.sleep(random.random() * 0.05)
                with claim.transaction(connection) as tx:
                    time.sleep(random.random() * 0.01)
                    connection.execute("INSERT INTO effects VALUES (?, ?)", (key, os.getpid()))
                    tx.result = key
    except Completed as done:
        if done.result != key:
            raise RuntimeError(f"{key} was answered with {done.result!r}") from done
        return True
    except (Busy, LeaseLost):
        return False
    return True


# --- a worker that is paused --------------------------------------------------------------------------------------


def zombie(ledger):
    try:
        with Once(f"sqlite:///{ledger}", lease=1.0).claim("key") as claim:
            say("claimed", claim.fence)
            sys.stdin.readline()
            say("lost" if claim.lost else "held")
            claim.complete("zombie")
    except LeaseLost:
        say("LeaseLost")
    else:
        say("completed")


# --- many on the same keys ----------------------------------------------------------------------------------------


def race(ledger, log, count):
    once = Once(f"sqlite:///{ledger}?timeout=30", lease=60, on_busy=60.0)
    say("ready")
    sys.stdin.readline()
    keys = list(range(int(count)))
    random.shuffle(keys)
    for key in keys:
        assert once.run(key, _logged, log, key) == key
    say("done")


def _logged(log, key):
    append(log, key)
    return key


# --- a worker whose clock is wrong --------------------------------------------------------------------------------


def skewed(ledger):
    """The parent holds "live" for ten minutes and has completed "done" with a retention as long."""
    try:
        time.sleep(0.001)
    except OSError:
        # libfaketime 0.9.10 gets clock_nanosleep(TIMER_ABSTIME) wrong, which is what CPython's sleep calls, when it
        # leaves the monotonic clock alone; when it does not, it is every wait for a lock with a timeout that hangs.
        time.sleep = threading.Event().wait
    once = Once(f"sqlite:///{ledger}", lease=3.0, retention=600.0)
    say("time", time.time())
    try:
        once.acquire("live")
        say("stolen")
    except Busy:
        say("busy")
    try:
        once.acquire("done")
        say("forgotten")
    except Completed as done:
        say("replayed", done.result)
    start = os.times().elapsed  # not a clock that can be faked
    try:
        once.acquire("live", on_busy=1.0)
        say("stolen")
    except Busy:
        say("waited", round(os.times().elapsed - start, 1))
    with once.claim("long") as claim:
        say("long")
        sys.stdin.readline()
        say("lost" if claim.lost else "held")
    say("completed")


# --- forks --------------------------------------------------------------------------------------------------------


def prefork(ledger, log):
    once = Once(f"sqlite:///{ledger}?timeout=30", lease=30, on_busy=30.0)
    once.run(0, _logged, log, 0)

    async def handle():
        append(log, "async")

    asyncio.run(once.run_async("async", handle))  # starts the thread that writes for coroutines
    with once.claim("held", lease=0.6) as claim:  # starts the heartbeat thread
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    _in_child(once, log)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        for key in range(50):
            assert once.run(key, _logged, log, key) == key
        for child in children:
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        time.sleep(0.8)
        assert not claim.lost
    asyncio.run(once.run_async("async", handle))
    say("done")


def _in_child(once, log):
    for key in range(50):
        assert once.run(key, _logged, log, key) == key

    async def handle():
        append(log, f"async {os.getpid()}")

    asyncio.run(once.run_async(("async", os.getpid()), handle))
    with once.claim(("long", os.getpid()), lease=0.4) as claim:  # a heartbeat thread of the child's own
        time.sleep(1.0)
        assert not claim.lost


def pool(ledger, log, method):
    context = multiprocessing.get_context(method)
    once = Once(f"sqlite:///{ledger}?timeout=30", lease=30, on_busy=30.0)
    once.run(0, _logged, log, 0)
    with context.Pool(4) as workers:
        results = workers.starmap(_in_pool, [(ledger, log, key) for key in [*range(40), *range(40)]])
    assert results == [*range(40), *range(40)]
    assert once.run(1, _logged, log, 1) == 1
    say("done")


def _in_pool(ledger, log, key):
    once = Once(f"sqlite:///{ledger}?timeout=30", lease=30, on_busy=30.0)
    return once.run(key, _logged, log, key)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    {
        "transact": transact,
        "zombie": zombie,
        "race": race,
        "skewed": skewed,
        "prefork": prefork,
        "pool": pool,
    }[what](*arguments)
