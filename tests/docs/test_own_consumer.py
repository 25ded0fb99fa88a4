"""The loop of examples/sqs_loop does with each outcome what the table of docs/how-to/engines.md says."""

import json
import sys
from types import SimpleNamespace

import pytest

from onceward import Once, ResultUnavailable, StoreError
from places import EXAMPLES


@pytest.fixture
def handle(monkeypatch):
    """Return the loop's function ``handle``, as a call that says which requests to SQS, or pauses, it made."""
    asked = []
    once = Once("memory:")
    sqs = SimpleNamespace(
        get_queue_url=lambda **_: {"QueueUrl": "url"},
        delete_message=lambda **_: asked.append("delete"),
        change_message_visibility=lambda **of: asked.append(0 < of["VisibilityTimeout"] <= 300),
    )

    @once(key="order.id", name="shop.charge", fingerprint="order.total", max_attempts=1)
    def charge(order):
        if raised := {"failing": ValueError(), "cut off": StoreError(""), "huge": ResultUnavailable("", "")}.get(
            order["id"]
        ):
            raise raised

    monkeypatch.setitem(sys.modules, "boto3", SimpleNamespace(client=lambda _: sqs))
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(charge=charge))
    code = (EXAMPLES / "sqs_loop" / "consumer.py").read_text(encoding="utf-8")
    exec(code.partition("\nwhile True:")[0], names := {})
    names["time"] = SimpleNamespace(sleep=lambda _: asked.append("pause"))  # the loop's: other threads sleep, too
    charge({"id": "done", "total": 1})
    once.acquire("busy", name="shop.charge", lease=300)
    with pytest.raises(ValueError):
        charge({"id": "failing", "total": 1})

    def handled(body):
        names["handle"]({"ReceiptHandle": "receipt", "MessageId": "id", "Body": body})
        return asked

    yield handled
    once.close()


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"id": "new", "total": 1}, ["delete"]),
        ({"id": "done", "total": 1}, ["delete"]),
        ({"id": "done", "total": 2}, []),  # Mismatch
        ({"id": "failing", "total": 1}, []),  # Parked
        ({"id": "busy", "total": 1}, [True]),
        ({"id": "cut off", "total": 1}, ["pause"]),
        ({"id": "huge", "total": 1}, ["delete"]),
        ({"total": 1}, []),  # KeyMissing
        ("{", []),
    ],
)
def test_only_what_is_done_is_deleted(handle, body, asked):
    assert handle(body if isinstance(body, str) else json.dumps(body)) == asked
