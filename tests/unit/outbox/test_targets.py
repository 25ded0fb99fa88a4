"""The registry of targets."""

import os
import signal
import threading

import pytest

from onceward.outbox import register
from onceward.outbox.targets import open_target
from queues.recorded_target import RecordedTarget
from tables import each


@each("address", ["", "orders", "gopher:orders", ":orders", "SQS:orders"])
def test_an_address_of_no_known_scheme_is_refused(address):
    with pytest.raises(ValueError, match=r"eventbridge, .*http, https, .*sns, .*sqs"):
        open_target(address)


@each("scheme", ["", "Mail", "mail:", "7up", "sqs"])
def test_a_scheme_that_cannot_begin_an_address_or_is_ours_is_refused(scheme):
    with pytest.raises(ValueError, match=r"lower-case letters|one of onceward's own"):
        register(scheme, lambda _: RecordedTarget())


def test_a_registered_scheme_opens_one_target_for_each_address_until_it_is_registered_again():
    opened = []
    register("one-each", lambda address: opened.append(address) or RecordedTarget())
    first = open_target("one-each:a")
    assert open_target("one-each:a") is first is not open_target("one-each:b")
    assert opened == ["one-each:a", "one-each:b"]
    register("one-each", lambda _: RecordedTarget())
    assert open_target("one-each:a") is not first


def test_a_child_that_is_forked_while_a_target_is_opened_opens_others():
    opening, done = threading.Event(), threading.Event()

    def slow(address):
        if address.endswith("slow"):
            opening.set()
            assert done.wait(60)
        return RecordedTarget()

    register("forking", slow)
    thread = threading.Thread(target=open_target, args=("forking:slow",))
    thread.start()
    assert opening.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # it would wait for ever for a thread that it does not have
        open_target("forking:other")
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_of_two_threads_that_open_an_address_both_get_one_target_and_the_other_is_closed():
    both, closed, opened = threading.Barrier(2, timeout=60), threading.Event(), []

    class Closed(RecordedTarget):
        def close(self):
            closed.set()

    def slow(address):
        both.wait()
        return Closed()

    register("raced", slow)
    threads = [threading.Thread(target=lambda: opened.append(open_target("raced:x"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened[0] is opened[1] is open_target("raced:x")
    assert closed.wait(10)
