"""The registry of targets."""

import os
import signal
import threading

import pytest

from onceward.outbox import MessageRefused, OutboxMessage, register
from onceward.outbox.targets import open_target
from queues.recorded_target import RecordedTarget
from tables import each


@each("address", ["", "orders", "gopher:orders", ":orders", "SQS:orders"])
def test_an_address_of_no_known_scheme_is_refused(address):
    with pytest.raises(ValueError, match=r"eventbridge, .*http, https, .*sns, .*sqs"):
        open_target(address)


def test_an_address_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="a target is text such as 'sqs:orders', not int"):
        open_target(7)


def test_a_registered_scheme_opens_one_target_for_each_address():
    opened = []
    register("one-each", lambda address: opened.append(address) or RecordedTarget())
    assert open_target("one-each:a") is open_target("one-each:a")
    assert open_target("one-each:b") is not open_target("one-each:a")
    assert opened == ["one-each:a", "one-each:b"]


def test_a_scheme_that_is_registered_again_opens_anew():
    first, second = RecordedTarget(), RecordedTarget()
    register("again", lambda _: first)
    assert open_target("again:x") is first
    register("again", lambda _: second)
    assert open_target("again:x") is second


@each("scheme", ["", "Mail", "mail:", "7up"])
def test_a_scheme_that_cannot_begin_an_address_is_refused(scheme):
    with pytest.raises(ValueError, match="lower-case letters"):
        register(scheme, lambda _: RecordedTarget())


def test_a_scheme_of_our_own_cannot_be_replaced():
    with pytest.raises(ValueError, match="one of onceward's own"):
        register("sqs", lambda _: RecordedTarget())


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


def test_a_target_can_register_others_in_a_thread_that_it_waits_for():
    def slow(address):
        thread = threading.Thread(target=register, args=("registered-meanwhile", lambda _: RecordedTarget()))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return RecordedTarget()

    register("registers", slow)
    open_target("registers:x")
    open_target("registered-meanwhile:x")


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


def test_the_recorded_target_answers_as_planned():
    target = RecordedTarget(batch=2)
    refused = MessageRefused("no")
    target.answers.extend([refused, None])
    one, two = OutboxMessage("k1", "1"), OutboxMessage("k2", "2")
    assert target.send([one, two]) == [refused, None]
    assert target.sent == [two]
    assert target.sends == [["k1", "k2"]]
