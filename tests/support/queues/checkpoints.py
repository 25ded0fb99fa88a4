"""A sink for checkpoints, and the two forms of opening one."""

import asyncio
import contextlib
import time

from faults.processes import PATIENCE

NAME = "sink"


class Refused(Exception):
    pass


class Sink:
    """What a checkpoint writes to: it keeps each flush, fails when told to, and knows what was acknowledged."""

    def __init__(self):
        self.flushes, self.done = [], []
        self.error = None
        self.during = lambda: None

    def write(self, items):
        self.during()
        if self.error is not None:
            raise self.error
        self.flushes.append(list(items))

    async def write_async(self, items):
        await asyncio.sleep(0)
        self.write(items)

    async def done_async(self, items):
        self.done.extend(items)


class Form:
    def close(self): ...

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.sleep(0.01)


class Blocking(Form):
    @contextlib.contextmanager
    def open(self, once, sink, **options):
        made = once.checkpoint(sink.write, **{"key": "item.id", "name": NAME, "on_done": sink.done.extend, **options})
        with made as found:
            yield found

    sleep = staticmethod(time.sleep)


class Awaiting(Form):
    """``async with once.checkpoint(...)``, driven from outside so that both forms share their tests."""

    def __init__(self):
        self.runner = asyncio.Runner()
        self.close = self.runner.close

    @contextlib.contextmanager
    def open(self, once, sink, **options):
        usual = {"key": "item.id", "name": NAME, "on_done": sink.done_async}
        made = once.checkpoint(sink.write_async, **usual | options)
        run = self.runner.run

        class Facade:
            def add(self, item):
                return run(found.add(item))

            def flush(self):
                return run(found.flush())

        found = run(made.__aenter__())
        try:
            yield Facade()
        except BaseException as error:
            run(made.__aexit__(type(error), error, error.__traceback__))
            raise
        run(made.__aexit__(None, None, None))

    def sleep(self, seconds):
        self.runner.run(asyncio.sleep(seconds))


def items(*ids):
    return [{"id": number} for number in ids]


def filled(form, once, sink, *ids, **options):
    with form.open(once, sink, **options) as checkpoint:
        return [checkpoint.add(item) for item in items(*ids)]


def statuses(once):
    return {record.key.removeprefix(f"{NAME}:"): record.status for record, _ in once.ledger.records()}
