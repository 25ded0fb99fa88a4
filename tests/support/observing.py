"""Once with an observer, for tests of faces."""

from onceward import Once
from onceward.observe import Event


def told_of(once, told, name="told"):
    """Return a Once on the same ledger that adds the kind and the route of each event about a key to ``told``."""

    def observe(event):
        if isinstance(event, Event):
            told.append((event.kind, event.route))

    return Once(once.store, name=name, observe=[observe])
