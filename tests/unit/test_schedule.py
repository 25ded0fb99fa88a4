"""How the tests of a run are shared among its processes, and which of them a run takes."""

from types import SimpleNamespace

import pytest
from xdist.remote import Producer

from schedule import Scheduling, is_of, left_out


class Process:
    """A process of pytest-xdist, as the scheduler sees it."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.sent = []

    def send_runtest_some(self, places):
        self.sent += places

    def shutdown(self):
        self.shutting_down = True


def run(folder, tests, processes, is_shared=False):
    """Return what each of the processes is given, each of them as fast as the others."""
    config = SimpleNamespace(
        rootpath=folder, option=SimpleNamespace(), getvalue=lambda name: ["popen"] * processes if name == "tx" else None
    )
    session = SimpleNamespace()
    line = Scheduling(config, Producer("", enabled=False), is_shared=is_shared, session=session)
    nodes = [Process(number) for number in range(processes)]
    collected = {
        node: [test for test in tests if is_of(number, test) or not is_shared] for number, node in enumerate(nodes)
    }
    for node in nodes:
        line.add_node(node)
        line.add_node_collection(node, collected[node])
    line.schedule()
    done = dict.fromkeys(nodes, 0)
    while any(done[node] < len(node.sent) for node in nodes):
        for node in nodes:
            if done[node] < len(node.sent):
                done[node] += 1
                line.mark_test_complete(node, node.sent[done[node] - 1])
    assert line.tests_finished
    return [[collected[node][place] for place in node.sent] for node in nodes]


def test_each_test_runs_once_and_every_third_process_begins_at_the_end(tmp_path):
    (tmp_path / "a.py").touch()
    tests = [f"a.py::test_{number:03}" for number in range(100)]
    given = run(tmp_path, tests, 3)
    assert sorted(test for ones in given for test in ones) == tests
    assert given == [sorted(given[0]), sorted(given[1]), sorted(given[2], reverse=True)]
    assert min(map(len, given)) > 15


def test_a_process_runs_what_it_has_collected_and_all_of_them_those_of_the_stores(tmp_path):
    files = ["unit/a.py", "integration/aws/a.py", "integration/redis/a.py", "processes/a.py"]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    tests = [f"{file}::test_{number:03}" for file in files for number in range(60)]
    given = run(tmp_path, tests, 6, is_shared=True)
    assert sorted(test for ones in given for test in ones) == sorted(tests)
    computes = {test.partition("::")[0] for test in given[2]}
    assert computes == {"unit/a.py", "integration/redis/a.py"}


class Item:
    """A test as pytest has collected it."""

    def __init__(self, name, marks=(), **params):
        id_ = "-".join(params.values())
        self.nodeid, self.callspec, self.marks = f"a.py::{name}[{id_}]", SimpleNamespace(params=params, id=id_), marks

    def iter_markers(self, kind):
        return [mark for mark in self.marks if mark.name == kind]

    def get_closest_marker(self, kind):
        return next(iter(self.iter_markers(kind)), None)


@pytest.mark.parametrize("layouts", [["plain", "single-table"], ["plain", "named", "sorted", "composite", "prefixed"]])
def test_a_file_has_all_values_of_a_sampled_parameter(layouts):
    items = [Item(name, layout=layout) for name in ("test_a", "test_b") for layout in layouts]
    left = left_out(items)
    kept = [one for one in items if one not in left]
    assert sorted(one.callspec.params["layout"] for one in kept) == sorted(layouts)
