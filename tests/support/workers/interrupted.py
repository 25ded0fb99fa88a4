"""Calls that a time limit strikes at random microseconds; says how often, and what was lost or swallowed.

Usage: interrupted.py FORM LEDGER CALLS SEED HOW, where HOW is "signal" or "thread" (PyThreadState_SetAsyncExc).
"""

import asyncio
import ctypes
import faulthandler
import logging
import random
import signal
import statistics
import sys
import threading
import time
import warnings

from onceward import Once
from onceward.core.drivers import drive

form, url, calls, seed, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
logging.disable()
faulthandler.dump_traceback_later(240, exit=True)  # what an interrupt has made wait for ever
warnings.simplefilter("ignore")
rng = random.Random(seed)
once = Once(url, name="n", lease=600)
done: list[str] = []


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException."""


class Declined(Exception):
    """An outcome."""


def handle(key):
    done.append(key)  # the effect
    return {"key": key}


def declined(key):
    done.append(key)
    raise Declined(key)


async def handle_async(key):
    await asyncio.sleep(0)
    done.append(key)
    return {"key": key}


batch = once.batch(handle, key="key")
batch_async = once.batch(handle_async, key="key", concurrency=2)
final = once.using(final=(Declined,))


def single(keys):
    once.run(keys[0], handle, keys[0])


def final_outcome(keys):
    final.run(keys[0], declined, keys[0])


def flush(items):
    done.extend(items)


def checkpoint(keys):
    with once.checkpoint(flush, key=lambda item: item, name="n") as sink:
        for key in keys:
            sink.add(key)
        sink.flush()


async def flush_async(items):
    await asyncio.sleep(0)
    done.extend(items)


async def checkpoint_async(keys):
    async with once.checkpoint(flush_async, key=lambda item: item, name="n") as sink:
        for key in keys:
            await sink.add(key)
        await sink.flush()


async def single_async(keys):
    await once.run_async(keys[0], handle_async, keys[0])


async def plain_async(keys):
    await once.run_async(keys[0], handle, keys[0])


async def run_batch_async(keys):
    return await batch_async.run_async(keys)


FORMS = {
    "single": (single, 1),
    "final": (final_outcome, 1),
    "single_async": (single_async, 1),
    "plain_async": (plain_async, 1),
    "batch": (batch.run, 4),
    "batch_async": (run_batch_async, 4),
    "checkpoint": (checkpoint, 3),
    "checkpoint_async": (checkpoint_async, 3),
}
call, count = FORMS[form]
is_async = asyncio.iscoroutinefunction(call)
runner = asyncio.Runner()
HANDLERS = {f.__code__ for f in (handle, handle_async, declined, flush, flush_async)}


def go(keys):
    try:
        return (runner.run(call(keys)) if is_async else call(keys)) or []
    except Declined:
        return []


def frames(error):
    """All code that an exception went through, and those that it came of or that came of it."""
    found, seen = set(), set()
    pending = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = one.__traceback__
        while trace is not None:
            found.add(trace.tb_frame.f_code)
            trace = trace.tb_next
        pending += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found


def is_limit(error):
    while error is not None:
        if isinstance(error, SoftTimeLimit):
            return True
        error = error.__context__ or error.__cause__
    return False


struck, armed = 0, False
where = []
ignored = []  # where Python drops what is raised: in callbacks of weak references


def unraisable(told):
    if told.exc_type is SoftTimeLimit:
        ignored.append(told.object)
    else:
        sys.__unraisablehook__(told)


sys.unraisablehook = unraisable


def strike(number, frame):
    global struck, where  # what the program counts
    if not armed:
        return
    stack, safe = [], None
    while frame is not None:
        file = frame.f_code.co_filename
        if safe is None and ("/asyncio/" in file or "/onceward/" in file or file == __file__):
            safe = "/asyncio/" not in file
        stack.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}:{frame.f_code.co_name}")
        frame = frame.f_back
    if is_async and not safe:
        return  # asyncio's own code loses callbacks then, whoever they are for
    if stack[0].startswith(("_weakrefset.py", "warnings.py")) or stack[0].endswith(":_wake"):
        return  # Python, or a callback of the event loop, ignores it there
    struck += 1
    where = stack
    raise SoftTimeLimit


def record(key):
    return drive(once.store.load(f"n:{key}"), once.store).record


def limited(keys, delay):
    """Run one call under a time limit; return what came of it."""
    global armed
    try:
        try:
            armed = True
            if how == "signal":
                signal.setitimer(signal.ITIMER_REAL, delay)
            outcomes = go(keys)
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        return error
    return next((outcome.error for outcome in outcomes if is_limit(outcome.error)), None)


def in_thread(keys, delay):
    """The same, in a thread that another thread throws the exception at."""
    global struck
    came = []
    began = over = decided = late = False

    def work():
        nonlocal began, over, late
        try:
            began = True
            came.append(limited(keys, delay))
            over = True
            while not decided:  # what is thrown from now on arrives here
                time.sleep(0)
        except SoftTimeLimit:
            late = True  # the call had returned

    thread = threading.Thread(target=work)
    thread.start()
    while not began:
        time.sleep(0)
    until = time.perf_counter() + delay
    while time.perf_counter() < until and not over:
        pass
    thrown = not over and ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SoftTimeLimit)
    )
    decided = True
    thread.join()
    struck += bool(thrown and not late)
    return came[0] if came else None


for n in range(20):
    go([f"w{n}.{i}" for i in range(count)])
times = []
for n in range(50):
    began = time.perf_counter()
    go([f"m{n}.{i}" for i in range(count)])
    times.append(time.perf_counter() - began)
typical = statistics.median(times)  # on a busy machine a few take much longer
if how == "signal":
    signal.signal(signal.SIGALRM, strike)
else:
    sys.setswitchinterval(1e-5)  # or a call is through before the other thread gets its turn
lost, swallowed, reached = [], 0, 0
for n in range(20 * calls):
    if n >= calls and struck > calls / 30:
        break  # a busy machine lets many calls end before they are struck: it makes more
    keys = [f"k{n}.{i}" for i in range(count)]
    done.clear()
    ignored.clear()
    before = struck
    delay = max(1e-6, rng.random() * typical * 1.2)
    error = limited(keys, delay) if how == "signal" else in_thread(keys, delay)
    if struck > before:
        reached += is_limit(error)
        if not ignored and not is_limit(error):
            swallowed += 1
            print("swallowed", where[:4], repr(error), file=sys.stderr)
    if HANDLERS & frames(error):
        continue  # it struck the handler itself
    for key in done:
        held = record(key)
        if held is None or held.status != "COMPLETED":
            lost.append((key, held and held.status, repr(error)))
            import traceback

            if len(lost) < 4 and error is not None:
                traceback.print_exception(error)
print(struck, reached, swallowed, len(lost), f"{typical * 1e6:.0f}us")
