"""Signal handlers that make guarded calls, or fork, wherever they interrupt their own thread: nothing hangs, nothing runs twice."""

import os
import subprocess
import sys

import pytest

from places import SOURCES

LOOP = """
import asyncio, collections, faulthandler, os, random, signal, sys, time
from onceward import Once, OncewardError, StoreError
url, how, does, seconds = *sys.argv[1:4], float(sys.argv[4])
faulthandler.dump_traceback_later(100, exit=True)  # whoever waits for his own lock
faulthandler.register(signal.SIGUSR1)
once, me = Once(url, lease=30), os.getpid()
ran, said, signals, refused, children = collections.Counter(), set(), 0, 0, []
dice = random.Random(5)

def handle(key):
    ran[key] += 1
    return key

async def handle_async(key):
    ran[key] += 1
    return key

def call(number):
    global refused
    for key in (f"signal {number}", f"signal {number - 1}"):
        try:
            assert once.run(key, handle, key) == key
        except StoreError as error:
            assert not error.transient and "signal handler" in str(error), error
            refused += 1

def fork(number):
    child = os.fork()
    if child == 0:
        if does == "fork and return":
            return
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

def on_signal(*_):
    global signals
    signals += 1
    {"call": call, "fork": fork, "fork and return": fork, "close": close}[does](signals)
    if os.getpid() != me:
        return
    for child in list(children):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            children.remove(child)
            if status and does == "fork":
                said.add(f"child: {status}")
    again()

def going():  # on a busy machine for longer, until there were signals enough
    now = time.monotonic()
    return now < end or now < end + 60 and (signals <= 20 or number <= 8)

def again():
    if going() and os.getpid() == me:
        signal.setitimer(signal.ITIMER_REAL, 50e-6 + dice.random() * (8e-4 if does == "call" else 2e-2))

def one(number):
    try:
        try:
            assert once.run(number, handle, number) == number
        except StoreError as error:  # interrupted at each try of two seconds: nothing has run, so it may be called again
            if not error.transient or does == "call":
                raise
            assert not ran[number] and once.run(number, handle, number) == number
    except Exception as error:
        said.add(repr(error))
    if os.getpid() != me:
        os._exit(0)

def many(number):
    keys = [f"{number} {n}" for n in range(8)]
    try:
        results = once.batch(handle, key=lambda key: key, name="many").run(keys)
        assert sorted(ran[key] for key in keys) == [1] * 8, results
    except Exception as error:
        said.add(repr(error))

async def some(number):
    try:
        assert await once.run_async(number, handle_async, number) == number
    except Exception as error:
        said.add(repr(error))

once.run("warm up", handle, "warm up")
signal.signal(signal.SIGALRM, on_signal)
end = time.monotonic() + seconds
number = 0
again()
while going():
    number += 4
    if how == "async":
        async def main():
            await asyncio.gather(*(some(number + n) for n in range(4)))
        asyncio.run(main())
    elif how == "threads":
        import threading
        threads = [threading.Thread(target=one, args=(number + n,)) for n in (1, 2)]
        for thread in threads: thread.start()
        one(number)
        for thread in threads: thread.join()
    else:
        {"single": one, "batch": many}[how](number)
signal.setitimer(signal.ITIMER_REAL, 0)
for child in children:
    os.waitpid(child, 0)
twice = [key for key, times in ran.items() if times > 1]
states = {record.status for record, _ in once.ledger.records() if "child" not in record.key}
print([(record.key, record.status) for record, _ in once.ledger.records() if record.status != "COMPLETED"][:5], file=sys.stderr)
print(twice, sorted(said), states, signals > 20, number > 8, "refused", refused, "of", signals, file=sys.stderr)
print(twice, sorted(said), states == {"COMPLETED"}, signals > 20, number > 8)
"""


def run(url, how, does, seconds=1.5):
    done = subprocess.run(
        [sys.executable, "-c", LOOP, url, how, does, str(seconds)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout == "[] [] True True True\n", done.stderr


@pytest.mark.sampled("batch", "async")
@pytest.mark.parametrize("how", ["single", "batch", "threads", "async"])
def test_a_signal_handler_that_makes_a_guarded_call_never_hangs(tmp_path, how):
    run(f"sqlite:///{tmp_path}/ledger.db?synchronous=NORMAL", how, "call")


@pytest.mark.sampled("async")
@pytest.mark.parametrize("how", ["single", "async"])
def test_a_signal_handler_that_makes_a_guarded_call_in_memory_never_hangs(how):
    run("memory:", how, "call")


@pytest.mark.sampled("threads")
@pytest.mark.parametrize("how", ["single", "threads", "async"])
def test_a_signal_handler_that_forks_never_hangs_and_the_call_goes_on(tmp_path, how):
    run(f"sqlite:///{tmp_path}/ledger.db?synchronous=NORMAL", how, "fork")


def test_a_signal_handler_that_closes_the_ledger_never_hangs(tmp_path):
    run(f"sqlite:///{tmp_path}/ledger.db?synchronous=NORMAL", "threads", "close")


LIMIT = """
import os, signal, sys, threading, time
from onceward import Once, StoreError
once = Once(sys.argv[1])
once.run("warm", int)
held = threading.Event()
def hold():  # as a commit does that waits for the disk
    with once.store._writing:
        held.set()
        time.sleep(1.2)
class Limit(Exception):
    pass
def limit(*_):
    raise Limit
signal.signal(signal.SIGALRM, limit)
threading.Thread(target=hold).start()
held.wait()
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(40)
    try:
        once.run("child", int)
    except StoreError as error:
        os._exit("forked" not in str(error))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
threading.Thread(target=once.run, args=("parent", int)).start()
"""


def test_a_time_limit_that_strikes_a_fork_leaves_no_lock_held(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", LIMIT, f"sqlite:///{tmp_path / 'ledger.db'}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "Limit" in done.stderr, "Python says that it ignores it"


CARRIED = """
import os, sys
from onceward import Once, StoreError
once, children = Once(sys.argv[1]), []
once.run("warm up", str, 1)

def fork(text):  # as a signal handler, or a finalizer, that Python runs in the middle of a statement
    if not children:
        children.append(os.fork())
    return text.decode()

connection, said = once.ledger.store._file.writer(), []
connection.text_factory = fork
for number in range(3):
    try:
        said.append(once.run("warm up", str, 1))
    except StoreError as error:
        said.append(str(error))
if children == [0]:
    os._exit(["in the middle of a request" in text for text in said] != [False, True, True])
print(said, os.waitpid(children[0], 0)[1])
"""


def test_a_fork_amid_a_statement_leaves_the_ledger_to_the_parent(tmp_path):
    command = [sys.executable, "-c", CARRIED, f"sqlite:///{tmp_path}/ledger.db"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("['1', '1', '1'] 0\n", "")
