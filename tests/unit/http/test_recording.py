"""How an answer's claim ends, with a time limit as without one."""

import sqlite3

import pytest
from werkzeug.test import Client

from onceward import Made, Once, Parked, ResultNotRecorded, StoreError, current
from onceward.core.record import IN_PROGRESS, PARKED, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_before
from onceward.web import Rules, Scope, WsgiIdempotency
from tables import each

WITHIN = [None, 5.0]


class Broken(Exception):
    """What the application raises."""


def post(app, once, within, data=b"{}"):
    guarded = WsgiIdempotency(app, once, Rules(scope=Scope.EVERYBODY, record_within=within), name="n")
    return Client(guarded).post("/orders", data=data, headers={"Idempotency-Key": "k"})


def statuses(once):
    return [record.status for record, _ in once.ledger.records()]


@each("within", WITHIN)
def test_a_transaction_left_open_is_rolled_back_before_its_key_is_given_back(tmp_path, within):
    once = Once(f"sqlite:///{tmp_path}/{within}.db?timeout=0.2")
    connection = sqlite3.connect(tmp_path / f"{within}.db", isolation_level=None)
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


@each("within", WITHIN)
def test_an_endpoint_that_has_steps_has_begun_even_if_its_answer_is_a_refusal(within):
    once, charges = Once("memory:"), []

    def charge():
        charges.append(1)
        raise TimeoutError

    def app(environ, start_response):
        try:
            current().step("charge", charge, on_lapse=lambda key: Made("found"))
        except TimeoutError:
            start_response("429 Too Many Requests", [])
            return [b"later"]
        start_response("201 Created", [])
        return [b"charged"]

    assert post(app, once, within).status_code == 429
    assert post(app, once, within, b"[]").status_code == 422  # the first input is bound
    assert post(app, once, within).data == b"charged"
    assert len(charges) == 1


@each("status", ["409 Conflict", "200 OK", "429 Too Many Requests", "500 Internal Server Error"])
@each("within", WITHIN)
def test_an_attempt_that_a_step_has_stopped_is_parked_whatever_is_answered(within, status):
    once = Once("memory:")

    def charge():
        raise TimeoutError

    def app(environ, start_response):
        claim = current()
        try:
            claim.step("charge", charge, on_lapse="park", not_made=(ZeroDivisionError,))
        except TimeoutError:
            claim.release()  # so that another attempt meets the step
            raise
        except Parked:
            start_response(status, [])
            return [b"sorry"]

    with pytest.raises(TimeoutError):
        post(app, once, within)
    post(app, once, within)
    assert statuses(once) == [PARKED]
    assert post(app, once, within).status_code == 409


@each("within", WITHIN)
def test_a_completion_that_is_not_recorded_is_known_behind_the_frameworks_answer(within):
    left = []
    once = Once(Faults(MemoryStore(), lambda _: left.pop() if left else None))

    def app(environ, start_response):
        left.extend([fail_before(StoreError)] * 3)
        with pytest.raises(ResultNotRecorded):
            current().complete("done")
        start_response("500 Internal Server Error", [])
        return [b"oops"]

    post(app, once, within)
    assert statuses(once) == [IN_PROGRESS]
    assert post(app, once, within).status_code == 409
