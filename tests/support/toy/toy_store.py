"""A store in another package: one pickled file behind a lock. Its folder is all there is to it."""

import fcntl
import os
import pickle

from onceward.core.clock import boottime
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.memory import MemoryStore

_CAN = {"provision": "toy_store:provision", "exists": "toy_store:exists"}


class ToyStore(MemoryStore):
    """Records in memory, which are read from the file before each request and written after it."""

    capabilities = _CAN

    def __init__(self, path, clock=boottime):
        super().__init__(clock)
        self.path = str(path)
        self.url = f"toy://{self.path}"

    def exchange(self, request):
        with open(self.path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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
