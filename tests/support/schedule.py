"""Which tests a run takes, and which process runs them when."""

import os
from collections import defaultdict
from functools import cache

from xdist.scheduler import LoadScopeScheduling

# Of these parameters a test takes so many values, the next test the following ones: each value meets the code that is its own in some
# tests, at least once in each file, and the tests that are the same for all run on some. A file names more with `pytest.mark.sampled(form=1)`. `make nightly` runs
# all values, and both versions of PostgreSQL. A file that is named runs whole. `pytest.mark.sampled("sqlite")` names the values themselves.
SAMPLED = {"hand": 2, "layout": 1, "pool": 1}
ASKED = os.environ.get("ONCEWARD_NIGHTLY")  # "1" runs all, "0" leaves tests out of a named file, too
NIGHTLY = ASKED == "1"
# What waits most is first in line, and what computes is last. Each process collects only what it may run: that takes half the time.
LINE = ("processes/", "e2e/", "docs/", "systems/", "integration/", "stores", "conformance/", "unit/")
STORES = tuple(f"integration/{store}/" for store in ("dynamodb", "mysql", "postgres", "redis", "sqlite"))


def left_out(items):
    """Return the tests that are for ``make nightly`` only."""
    alike = defaultdict(lambda: defaultdict(list))  # by file, and by what is the same but for the sampled parameters
    for item in items:
        counts = {name: count for name, count in _sampled(item).items() if name in item.callspec.params}
        if counts:
            others = tuple((name, id(value)) for name, value in item.callspec.params.items() if name not in counts)
            test = item.nodeid.partition("[")[0]
            alike[test.partition("::")[0]][test, others].append((item, counts))
    left = {item for item in items if item.get_closest_marker("nightly") or not _is_named(item)}
    for tests in alike.values():
        every = [item for ones in tests.values() for item, _ in ones if item not in left]
        run = set()
        for turn, ones in enumerate(tests.values()):
            kept = [item for item, _ in ones]
            for place, (name, count) in enumerate(ones[0][1].items()):
                values = list(dict.fromkeys(id(item.callspec.params[name]) for item in kept))
                chosen = {values[((turn >> place) + at * len(values) // count) % len(values)] for at in range(count)}
                kept = [item for item in kept if id(item.callspec.params[name]) in chosen]
            run.update(kept)
        seen = {one for item in every if item in run for one in _values(item)}
        for item in every:
            if not _values(item) <= seen:
                run.add(item)
                seen |= _values(item)
        left.update(item for item in every if item not in run)
    return left


def _sampled(item):
    marks = [mark.kwargs for mark in item.iter_markers("sampled")]
    return (
        {name: count for counts in (SAMPLED, *marks) for name, count in counts.items()}
        if hasattr(item, "callspec")
        else {}
    )


def _values(item):
    """Return a test's values of its sampled parameters."""
    return {(name, id(item.callspec.params[name])) for name in _sampled(item) if name in item.callspec.params}


def _is_named(item):
    """Return whether the test has one of the values that its marks ``sampled`` name, if they name any."""
    named = [value for mark in item.iter_markers("sampled") for value in mark.args]
    return not named or any(f"-{value}-" in f"-{item.callspec.id}-" for value in named)


def rank(nodeid):
    """Return a test's place in the line."""
    name = nodeid.removeprefix("tests/")
    kind = "stores" if name.startswith(STORES) else name
    return next((rank for rank, first in enumerate(LINE) if kind.startswith(first)), len(LINE))


def is_of(number, nodeid):
    """Return whether the process with this number may run the test: every third runs what computes, and all help the stores."""
    place, stores = rank(nodeid), LINE.index("stores")
    return place >= stores if number % 3 == 2 else place <= stores


def number_of(node):
    """Return the number of a process of pytest-xdist."""
    return int(node.gateway.id.removeprefix("gw"))


class Scheduling(LoadScopeScheduling):
    """Give a file with servers of its own to one process; a process gets the first in line of what it has collected, and every third one the last."""

    def __init__(self, config, log, *, is_shared, session):
        super().__init__(config, log)
        self.is_shared, self._session = is_shared, session

    def add_node_collection(self, node, collection):
        self.registered_collections[node] = list(collection)

    def schedule(self):
        if self.collection is None:
            self.collection = sorted(
                {test: None for ones in self.registered_collections.values() for test in ones}, key=rank
            )
            self._session.testscollected = len(self.collection)
            for test in self.collection:
                self.workqueue.setdefault(self._split_scope(test), {})[test] = False
        for _ in range(2):  # a process needs the next test to run one
            for node in self.nodes:
                if node in self.registered_collections:
                    self._reschedule(node)

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return file if _has_own_servers(self.config.rootpath / file) else nodeid

    def _assign_work_unit(self, node):
        number = number_of(node)
        for scope in reversed(self.workqueue) if number % 3 == 2 else self.workqueue:
            if is_of(number, scope) or not self.is_shared:
                self.workqueue.move_to_end(scope, last=False)
                super()._assign_work_unit(node)
                return
        node.shutdown()


@cache
def _has_own_servers(file):
    return 'scope="module"' in file.read_text(encoding="utf-8")
