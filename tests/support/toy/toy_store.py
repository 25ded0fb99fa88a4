"""A store in another package: one pickled file behind a lock. Its folder is all there is to it."""

import fcntl
import os
import pickle
from pathlib import Path

from onceward.core.clock import boottime
from onceward.stores.capabilities import TransactionState, check_options
from onceward.stores.contract import Part
from onceward.stores.inspection import Finding
from onceward.stores.memory import MemoryStore

CAPABILITIES = {
    "provision": "toy_store:provision",
    "exists": "toy_store:exists",
    "inspect": "toy_store:Look",
    "transaction": "toy_store:Session",
}


class ToyStore(MemoryStore):
    """Records in memory, which are read from the file before each request and written after it."""

    capabilities = CAPABILITIES

    def __init__(self, path, clock=boottime):
        super().__init__(clock)
        self.path = str(path)
        self.url = f"toy://{self.path}"

    def exchange(self, request):
        with open(self.path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.run(request)

    def run(self, request):
        """Run a request; the lock is held."""
        with open(self.path, "a+b") as file:
            file.seek(0)
            self.records, self._fence = pickle.loads(file.read() or pickle.dumps(({}, 0)))
            reply = request()
            file.truncate(0)
            file.write(pickle.dumps((self.records, self._fence)))
        return reply


def open_url(parts, options):
    if options:
        raise ValueError(f"{parts.geturl()!r}: a toy takes no options")
    return ToyStore(parts.netloc + parts.path)


def exists(store):
    return os.path.exists(store.path)


def provision(store, options):
    check_options(store.url, options)
    there = exists(store)
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
