"""A store in another package: one pickled file behind a lock. Its folder is all there is to it."""

import fcntl
import os
import pickle
from pathlib import Path

from onceward.core.clock import boottime
from onceward.core.protocol import STATUSES
from onceward.core.record import Reply
from onceward.stores.capabilities import TransactionState, check_options
from onceward.stores.contract import MORE, Damaged, OneByOne, Page, Part, Purged
from onceward.stores.inspection import Finding

CAPABILITIES = {
    "provision": "toy_store:provision",
    "found": "toy_store:found",
    "inspect": "toy_store:Look",
    "transaction": "toy_store:Session",
}


class ToyStore(OneByOne):
    resolution = 0.0
    poll = 0.02
    max_result = 256 * 1024
    capabilities = CAPABILITIES

    def __init__(self, path, clock=boottime):
        self.path = str(path)
        self.url = f"toy://{self.path}"
        self.clock = clock

    def exchange(self, request):
        with open(self.path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.run(request)

    async def exchange_async(self, request):
        return self.exchange(request)

    def run(self, request):
        """Run a request; the lock is held."""
        with open(self.path, "a+b") as file:
            file.seek(0)
            records, fence = pickle.loads(file.read() or pickle.dumps(({}, 0)))
            reply, fence = request(records, fence, self.clock())
            file.truncate(0)
            file.write(pickle.dumps((records, fence)))
        return reply

    def insert(self, write):
        def insert(records, fence, now):
            if held := records.get(write.key):
                return Reply(False, held, now), fence
            record = write.at(now)
            if not write.fence:  # a new claim's is larger than that of every record that was deleted
                record = record._replace(fence=max(record.fence, fence + 1))
            records[write.key] = record
            return Reply(True, record, now), fence

        return (yield insert)

    def swap(self, write, seen):
        def swap(records, fence, now):
            held = records.get(write.key)
            won = held is not None and version(held) == version(seen)
            if won:
                records[write.key] = held = write.at(now)
            return Reply(won, held, now), fence

        return (yield swap)

    def load(self, key):
        return (yield lambda records, fence, now: (Reply(False, records.get(key), now), fence))

    def select(self, selection, after, limit):
        def select(records, fence, now):
            keys = sorted(key for key, one in records.items() if selection.means(one, now) and key > (after or ""))
            page = [records[key] for key in keys[:limit]]
            return Page(page, page[-1].key if len(keys) > limit else None, now), fence

        return (yield select)

    def delete(self, seen):
        def delete(records, fence, now):
            held = records.get(seen.key)
            if held is None or isinstance(seen, Damaged) or version(held) != version(seen):
                return Reply(False, held, now), fence
            del records[seen.key]
            return Reply(True, held, now), max(fence, held.fence)

        return (yield delete)

    def purge(self, limit, after=None):
        def purge(records, fence, now):
            old = [one for one in records.values() if one.expires_at is not None and one.expires_at <= now]
            gone = [one for one in old if one.status in STATUSES][:limit]
            for one in gone:
                del records[one.key]
            return len(gone), max([fence, *(one.fence for one in gone)])

        gone = yield purge
        return Purged(gone, MORE if gone == limit else None)

    def close(self):
        pass


def version(record):
    return record.owner, record.fence, record.beat


def open_url(parts, options):
    if options:
        raise ValueError(f"{parts.geturl()!r}: a toy takes no options")
    return ToyStore(parts.netloc + parts.path)


def found(store):
    return os.path.exists(store.path)


def provision(store, options):
    check_options(store.url, options)
    there = found(store)
    yield from store.load("?")
    return [Part(f"toy {store.path}", not there)]


class Look:
    is_local = True

    def __init__(self, store):
        self.store = store

    def findings(self):
        yield Finding("warning", "toy", f"{self.store.url} is a toy", "toys break", "use another ledger")


class Session:
    """The "connection" is a dict: what the body writes there is kept if the transaction commits."""

    awaited = False
    exclusive = True

    def __init__(self, store, connection):
        self.store, self.connection = store, connection
        self.lock = None

    @property
    def state(self):
        return TransactionState.OPEN if self.lock is not None else TransactionState.ENDED

    def begin(self):
        yield self._lock

    def began_here(self):
        yield from ()
        return True

    def flush(self):
        yield from ()

    def commit(self):
        yield self._unlock

    def rollback(self):
        if self.lock is not None:
            yield self._undo

    def cut(self):
        self._undo()

    def _lock(self):
        self.lock = open(self.store.path + ".lock", "w")  # noqa: SIM115 - closed by _unlock()
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        path = Path(self.store.path)
        self.before = path.read_bytes() if path.exists() else b"", dict(self.connection)

    def _unlock(self):
        self.lock.close()
        self.lock = None

    def _undo(self):
        records, effects = self.before
        Path(self.store.path).write_bytes(records)
        self.connection.clear()
        self.connection.update(effects)
        self._unlock()

    def exchange(self, request):
        return request() if request in {self._lock, self._unlock, self._undo} else self.store.run(request)

    async def exchange_async(self, request):
        return self.exchange(request)
