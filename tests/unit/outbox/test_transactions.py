"""Messages that leave with a transaction of the caller's, without a claim; and those of handlers that a face of HTTP or Lambda calls."""

import contextlib
import json
import re
import sqlite3
import time
from unittest.mock import Mock

import pytest

import onceward
from onceward import Once, StoreError
from onceward.aws import on_invoke, on_sqs
from onceward.core.policy import DAY
from onceward.outbox import drain, sender
from onceward.stores.memory import MemoryStore
from places import DOCS
from queues import lambda_events as events
from queues.boxes import record_of
from waiting import until
from web.api_events import http, keyed
from web.asgi import records
from web.calls import Rules, on_api
from web.scripted import Server, serve


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/l.db")
    list(made.ledger.records())
    yield made
    made.close()


@pytest.fixture(params=["legacy", "autocommit", "explicit"])
def connection(request, once, tmp_path):
    options = {"isolation_level": None} if request.param == "explicit" else {}
    made = sqlite3.connect(f"{tmp_path}/l.db", **options)
    made.execute("CREATE TABLE effects (n INTEGER)")
    if request.param == "explicit":
        made.execute("BEGIN")
    elif request.param == "autocommit":
        made.execute("INSERT INTO effects VALUES (0)")
    yield made
    made.close()


def test_a_message_leaves_when_the_transaction_commits(once, connection, box):
    assert once.outbox(connection).send(box.address, {"n": 1})
    connection.execute("INSERT INTO effects VALUES (1)")
    assert drain(0.3) == 1
    assert (box.bodies, records(once)) == ([], [])
    connection.commit()
    assert drain(5) == 0
    assert box.bodies == ['{"n":1}']
    (record,) = records(once)
    assert (record.status, record.unsent, record.result) == ("COMPLETED", None, "null")
    assert record.key.startswith("outbox:")
    assert record.expires_at == record.lease_until + DAY
    assert box.target.sent[0].headers == {"onceward-root": record.key, "onceward-parent": record.key}


def test_a_transaction_that_is_repeated_sends_its_message(once, connection, box):
    once.outbox(connection).send(box.address, "a", key="k")
    connection.rollback()
    connection.execute("BEGIN")
    assert once.outbox(connection).send(box.address, "b", key="k")
    connection.commit()
    assert drain(5) <= 1  # the first is looked for some more times
    assert box.bodies == ["b"]
    assert [record.unsent for record in records(once)] == [None]


def test_a_message_takes_no_key_of_a_handler(once, connection, box):
    named = once.using(name="n")
    assert named.outbox(connection).send(box.address, "a", key="k")
    connection.commit()
    assert named.run("k", lambda: "it ran") == "it ran"
    assert sorted(record.key for record in records(once)) == ["n.outbox:k", "n:k"]


def test_a_key_is_sent_once(once, connection, box):
    outbox = once.outbox(connection)
    assert outbox.send(box.address, 1, key="order-7")
    assert not outbox.send(box.address, 2, key="order-7")
    assert outbox.send(box.address, 3, key="order-8")
    connection.commit()
    assert drain(5) == 0
    assert sorted(box.bodies) == ["1", "3"]
    again = once.outbox(connection)
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("BEGIN")
    assert not again.send(box.address, 4, key="order-7")
    connection.commit()
    assert records(once)[0].expires_at == records(once)[0].lease_until + once.policy.retention


def test_a_key_whose_record_has_expired_sends_again_before_a_purge(once, connection, box):
    assert once.outbox(connection, lease=1, retention=1).send(box.address, 1, key="report")
    connection.commit()
    assert drain(5) == 0
    (record,) = records(once)
    until(lambda: all(now > record.expires_at for _, now in once.ledger.records()))
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("BEGIN")
    assert once.outbox(connection).send(box.address, 2, key="report")
    for _ in range(9):  # it looks, and sees the record that has expired
        assert drain(0.1) == 1
    connection.commit()
    assert drain(5) == 0
    assert box.bodies == ["1", "2"]
    assert [one.fence > record.fence for one in records(once)] == [True]


def test_a_moment_without_the_ledger_is_one_failure_for_all_messages(once, connection, box, monkeypatch, quick):
    with monkeypatch.context() as patch:
        patch.setattr(type(once.store), "load", Mock(side_effect=StoreError("away", transient=True)))
        for number in range(25):
            once.outbox(connection).send(box.address, number)
        connection.commit()
        assert drain(1) == 25
    load, bad = type(once.store).load, records(once)[7].key
    damaged = Mock(
        side_effect=StoreError("damaged")
    )  # which harms no neighbour, and counts as no failure of the ledger
    monkeypatch.setattr(type(once.store), "load", lambda store, key: (damaged if key == bad else load)(store, key))
    until(lambda: len(box.bodies) == 24)
    assert drain(5) == 0
    assert (len(box.bodies), damaged.call_count) == (24, 1)


def test_a_connection_that_cannot_commit_the_message_is_refused(once, box, tmp_path):
    each_statement = sqlite3.connect(f"{tmp_path}/l.db", isolation_level=None)
    another_file = sqlite3.connect(f"{tmp_path}/other.db")
    another_file.execute("CREATE TABLE t (n INTEGER)")
    for connection, told in ((each_statement, "in no transaction"), (another_file, "only in the same file")):
        with pytest.raises(ValueError, match=told):
            once.outbox(connection).send(box.address, 1)
    assert records(once) == []
    with pytest.raises(TypeError, match="cannot commit a transaction of yours"):
        Once(MemoryStore()).outbox(None)


@pytest.mark.parametrize(("how", "sent"), [("402", ["1"]), ("500", []), ("raises", [])])
def test_an_answer_of_a_lambda_function_decides(once, box, how, sent):
    @on_api(once, Rules(record=lambda status: True), name="n")
    def place(event, _):
        onceward.current().send(box.address, 1)
        return {"statusCode": 1 // 0 if how == "raises" else int(how)}

    with pytest.raises(ZeroDivisionError) if how == "raises" else contextlib.nullcontext():
        place(keyed(http))
    assert box.bodies == sent  # it was sent before the answer: now the process may be frozen


def test_an_invocation_sends_before_its_answer(once, box):
    @on_sqs(once, key="order.id", name="n")
    async def place(order):
        onceward.current().send(box.address, order["id"])

    event = {"Records": [events.sqs_record("m1", {"id": 1}), events.sqs_record("m2", {"id": 2})]}
    assert place(event, events.Context()) == {"batchItemFailures": []}
    assert sorted(box.bodies) == ["1", "2"]
    assert {record.unsent for record, _ in once.ledger.records()} == {None}


def test_an_invocation_with_little_time_left_does_not_wait(once, box):
    real, box.target.send = box.target.send, lambda messages: (time.sleep(2), real(messages))[1]

    @on_invoke(once, name="n")
    def place(order):
        onceward.current().send(box.address, order["id"])
        return "placed"

    assert place({"id": 1}, events.Context(1000)) == "placed"
    assert box.bodies == []
    assert record_of(once).unsent is not None
    assert drain(5) == 0
    assert box.bodies == ["1"]


TEXT = (DOCS / "reference" / "outbox.md").read_text(encoding="utf-8")


def test_the_examples_send_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {}
    with Server(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as hooks:
        text = re.sub(r"https://\w+\.example", hooks.url, TEXT)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, space)
        assert sender.SENDER.drain(20) == 0
    posted = [(head.split(" ")[1], json.loads(content)) for head, content in hooks.requests]
    assert sorted(body["order"] for path, body in posted if path == "/orders") == [7, 7, 8]
    assert [body["to"] for path, body in posted if path == "/send"] == ["a@example.com", "b@example.com"]
    assert list(space["once"].ledger.records(status=["UNSENT", "REFUSED"])) == []
    space["connection"].close()
    space["once"].close()
