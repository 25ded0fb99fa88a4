"""Signal handlers that make guarded calls, or fork, wherever they interrupt their own thread: nothing hangs, nothing runs twice."""

import os
import subprocess
import sys

import pytest

from places import SOURCES

LOOP = """
import collections, faulthandler, os, random, signal, sys, threading, time
from onceward import Once, StoreError
url, how, does, seconds = *sys.argv[1:4], float(sys.argv[4])
faulthandler.dump_traceback_later(100, exit=True)  # whoever waits for his own lock
once = Once(url, lease=30)
ran, said, signals, children = collections.Counter(), set(), 0, []
dice = random.Random(5)

def handle(key):
    ran[key] += 1
    return key

def call(number):
    for key in (f"signal {number}", f"signal {number - 1}"):
        try:
            assert once.run(key, handle, key) == key
        except StoreError as error:
            assert not error.transient and "signal handler" in str(error), error

def fork(number):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if once.run(f"child {number}", handle, 1) == 1 else 2
        except StoreError as error:
            code = 0 if "signal handler" in str(error) else 3
        finally:
            os._exit(code)
    children.append(child)

def close(number):
    try:
        once.close()
    except StoreError as error:
        assert "signal handler" in str(error), error

def reap(flags):
    for child in list(children):
        pid, status = os.waitpid(child, flags)
        if pid:
            children.remove(child)
            if status:
                said.add(f"child: {status}")

def on_signal(*_):
    global signals
    signals += 1
    {"call": call, "fork": fork, "close": close}[does](signals)
    reap(os.WNOHANG)
    again()

def going():  # on a busy machine for longer, until there were signals enough
    now = time.monotonic()
    return now < end or now < end + 60 and (signals <= 20 or number <= 8)

def again():
    if going():
        signal.setitimer(signal.ITIMER_REAL, 50e-6 + dice.random() * (8e-4 if does == "call" else 2e-2))

def one(number):
    try:
        assert once.run(number, handle, number) == number
    except StoreError as error:  # interrupted at each try of two seconds: nothing has run, so it may be called again
        if not error.transient or does == "call":
            raise
        assert not ran[number] and once.run(number, handle, number) == number

def many(number):
    keys = [f"{number} {n}" for n in range(8)]
    results = once.batch(handle, key=lambda key: key, name="many").run(keys)
    assert sorted(ran[key] for key in keys) == [1] * 8, results

def tried(act, number):
    try:
        act(number)
    except Exception as error:
        said.add(repr(error))

def threads(number):
    started = [threading.Thread(target=tried, args=(one, number + n)) for n in (1, 2)]
    for thread in started: thread.start()
    tried(one, number)
    for thread in started: thread.join()

once.run("warm up", handle, "warm up")
signal.signal(signal.SIGALRM, on_signal)
end, number = time.monotonic() + seconds, 0
again()
while going():
    number += 4
    if how == "threads":
        threads(number)
    else:
        tried({"single": one, "batch": many}[how], number)
signal.setitimer(signal.ITIMER_REAL, 0)
reap(0)
twice = [key for key, times in ran.items() if times > 1]
left = [(record.key, record.status) for record, _ in once.ledger.records() if record.status != "COMPLETED" and "child" not in record.key]
print(left[:5], signals, file=sys.stderr)
print(twice, sorted(said), not left, signals > 20, number > 8)
"""


@pytest.mark.sampled("call-batch", "fork-threads", "close-threads")
@pytest.mark.parametrize("how", ["single", "batch", "threads"])
@pytest.mark.parametrize("does", ["call", "fork", "close"])
def test_a_signal_handler_that_calls_forks_or_closes_never_hangs_and_runs_nothing_twice(tmp_path, does, how):
    command = [sys.executable, "-c", LOOP, f"sqlite:///{tmp_path}/ledger.db?synchronous=NORMAL", how, does, "1.5"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.stdout == "[] [] True True True\n", done.stderr
