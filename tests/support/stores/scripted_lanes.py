"""Lanes that do what a test tells them, and writes that wait for the only one."""

import asyncio
import threading
from types import SimpleNamespace

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.lane import ServerLane
from waiting import until


class Write:
    def __init__(self, key, kind="insert", size=10):
        self.key, self.kind, self.rank, self.size = key, kind, int(kind != "swap"), size

    def merged(self, requests):
        return Many([one.key for one in requests], self.kind)

    def reply(self, rows):
        if isinstance(rows[self.key], Exception):
            raise rows[self.key]
        return rows[self.key]


class Many:
    def __init__(self, keys, kind):
        self.keys, self.kind = keys, kind

    def reply(self, rows):
        for one in rows.values():
            if isinstance(one, Exception):
                raise one
        return SimpleNamespace(replies=rows)


def asked(request):
    return request.kind, (request.keys if isinstance(request, Many) else [request.key]), isinstance(request, Many)


class Server:
    """What all lanes of a test lead to."""

    full = None  # the error of a lane that opens

    def __init__(self):
        self.seen = []  # the keys of each request, in their order
        self.poison, self.unreadable = {}, {}  # the errors of keys, and of those whose answer cannot be read
        self.held = set()  # keys whose request waits until ``go`` is set
        self.go, self.lanes, self.closed = threading.Event(), [], 0

    def answer(self, keys, many):
        self.seen.append(keys)
        for key in keys:
            if (error := self.poison.get(key)) is not None and not (many and isinstance(error, KeyboardInterrupt)):
                raise error
        return {key: self.unreadable.get(key, f"{key} done") for key in keys}

    def lane(self):
        self.lanes.append(BlockingLane(self))
        return self.lanes[-1]

    def lane_async(self):
        self.lanes.append(AwaitedLane(self))
        return self.lanes[-1]

    def open(self, most=1, timeout=30.0, left=frozenset()):
        return LedgerLanes(self.lane, self.lane_async, most, timeout, left)


class BlockingLane(ServerLane):
    is_alive = True

    def __init__(self, server):
        self.server = server

    def fetch(self, kind, keys, many):
        if not self.server.held.isdisjoint(keys):
            assert self.server.go.wait(60)
        if not self.is_ready and self.server.full is not None:
            raise self.server.full
        self.is_ready = True
        return self.server.answer(keys, many)

    def close(self, *, friendly=False):
        self.server.closed += 1


class AwaitedLane(BlockingLane):
    async def fetch(self, kind, keys, many):
        while not (self.server.held.isdisjoint(keys) or self.server.go.is_set()):
            await asyncio.sleep(0.001)
        return super().fetch(kind, keys, many)


def of_threads(server, writes, lanes):
    """Do the writes in a thread each, while the only lane is in use, and return their outcomes."""
    outcomes = {}

    def work(number, write):
        try:
            outcomes[number] = lanes.run(write, asked)
        except BaseException as error:
            outcomes[number] = error

    def start(number, write):
        thread = threading.Thread(target=work, args=(number, write))
        thread.start()
        return thread

    threads = [start(-1, Write("first"))]
    until(lambda: lanes._here.threads._all and not lanes._here.threads._idle)
    for number, write in enumerate(writes):
        threads.append(start(number, write))
        until(lambda before=number: sum(map(len, lanes._here.threads._line._ranks)) > before)
    server.go.set()
    for thread in threads:
        thread.join()
    assert outcomes.pop(-1) == "first done"
    return [outcomes[number] for number in range(len(writes))]


def of_tasks(server, writes, lanes):
    async def main():
        tasks = [asyncio.ensure_future(lanes.run_async(write, asked)) for write in (Write("first"), *writes)]
        await asyncio.sleep(0.01)
        server.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *rest = asyncio.run(main())
    assert first == "first done"
    return rest
