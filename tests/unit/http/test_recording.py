"""How an answer's claim ends, with a time limit as without one."""

import logging
import os
import sqlite3

import pytest
from werkzeug.test import Client

from onceward import Once, current
from onceward.core.record import COMPLETED, RELEASED
from onceward.web import Rules, Scope, WsgiIdempotency

WITHIN = [None, 5.0]


class Broken(Exception):
    """What the application raises."""


def post(app, once, within):
    guarded = WsgiIdempotency(app, once, Rules(scope=Scope.EVERYBODY, record_within=within), name="n")
    return Client(guarded).post("/orders", data=b"{}", headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("within", WITHIN)
def test_a_transaction_left_open_is_rolled_back_before_its_key_is_given_back(tmp_path, within):
    once = Once(f"sqlite:///{tmp_path}/ledger.db?timeout=0.2")
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")

    def app(environ, start_response):
        current().transaction(connection).__enter__()
        connection.execute("INSERT INTO effects VALUES (1)")
        raise Broken  # as a time limit does when its __exit__ begins

    with pytest.raises(Broken) as raised:
        post(app, once, within)

    assert not connection.in_transaction
    assert [record.status for record, _ in once.ledger.records()] == [RELEASED]
    assert not getattr(raised.value, "__notes__", ())
    once.close()


@pytest.mark.parametrize("within", WITHIN)
def test_a_forked_child_that_raises_records_and_logs_nothing(tmp_path, within, caplog):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    children = []

    def app(environ, start_response):
        children.append(os.fork())
        if not children[0]:
            raise Broken
        start_response("201 Created", [])
        return [b"made"]

    with caplog.at_level(logging.WARNING, logger="onceward"):
        try:
            response = post(app, once, within)
        except BaseException as error:  # only the child gets here
            told = caplog.records or getattr(error, "__notes__", ())
            os._exit(1 if told or not isinstance(error, Broken) else 0)

    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert response.status_code == 201
    assert [record.status for record, _ in once.ledger.records()] == [COMPLETED]
    once.close()
