"""Which tests a run takes, and which process runs them when."""

import os
from collections import defaultdict
from functools import cache

from xdist.scheduler import LoadScopeScheduling

# Of these parameters a test takes so many values, the next test the following ones: each value meets the code that is its own in some
# tests, and the tests that are the same for all run on some. A file names more with `pytest.mark.sampled(form=1)`. `make nightly` runs
# all values, and both versions of PostgreSQL. A file that is named runs whole. `pytest.mark.sampled("sqlite")` names the values themselves.
SAMPLED = {"hand": 2, "layout": 1, "pool": 1}
ASKED = os.environ.get("ONCEWARD_NIGHTLY")  # "1" runs all, "0" leaves tests out of a named file, too
NIGHTLY = ASKED == "1"
FIRST = ("processes/", "e2e/", "docs/", "systems/", "integration/", "conformance/")  # what waits most, before units


def left_out(items):
    """Return the tests that are for ``make nightly`` only."""
    alike = defaultdict(list)  # by what is the same but for the sampled parameters
    for item in items:
        counts = {name: count for name, count in _sampled(item).items() if name in item.callspec.params}
        if counts:
            others = tuple((name, id(value)) for name, value in item.callspec.params.items() if name not in counts)
            alike[item.nodeid.partition("[")[0], others].append((item, counts))
    left = {item for item in items if item.get_closest_marker("nightly") or not _is_named(item)}
    for turn, ones in enumerate(alike.values()):
        kept = [item for item, _ in ones]
        for place, (name, count) in enumerate(ones[0][1].items()):
            values = list(dict.fromkeys(id(item.callspec.params[name]) for item in kept))
            chosen = {values[((turn >> place) + at * len(values) // count) % len(values)] for at in range(count)}
            kept = [item for item in kept if id(item.callspec.params[name]) in chosen]
        left.update(item for item, _ in ones if item not in kept)
    return left


def _sampled(item):
    marks = [mark.kwargs for mark in item.iter_markers("sampled")]
    return (
        {name: count for counts in (SAMPLED, *marks) for name, count in counts.items()}
        if hasattr(item, "callspec")
        else {}
    )


def _is_named(item):
    """Return whether the test has one of the values that its marks ``sampled`` name, if they name any."""
    named = [value for mark in item.iter_markers("sampled") for value in mark.args]
    return not named or any(f"-{value}-" in f"-{item.callspec.id}-" for value in named)


def rank(nodeid):
    """Return a test's place in the order: the folders in ``FIRST``, and then all else."""
    name = nodeid.removeprefix("tests/")
    return next((rank for rank, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))


class Scheduling(LoadScopeScheduling):
    """Give a file with servers of its own to one process, so that each starts once; xdist's own groups do nothing on pytest 9.2.

    Tests at the front of the line wait much, and those at its end compute. Every third process takes from the end,
    so that the cores have work at all times.
    """

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False  # the line is as `rank` has it
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return file if _has_own_servers(self.config.rootpath / file) else nodeid

    def _assign_work_unit(self, node):
        if int(node.gateway.id.removeprefix("gw")) % 3 == 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@cache
def _has_own_servers(file):
    return 'scope="module"' in file.read_text(encoding="utf-8")
