"""The examples of docs/reference/outbox.md run as they are printed, against servers."""

import json
import re
from types import SimpleNamespace

import pytest

from onceward.outbox import OutboxMessage, sender
from onceward.outbox.targets import open_target
from printed.pages import section
from servers.needs import numbers
from web.http_servers import Answering

NAMES = numbers()


@pytest.fixture
def billing():
    server = Answering()
    yield server
    server.close()


def test_the_examples_run(ministack, aws, billing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BILLING_SECRET", "secret")
    for service in ("SQS", "EVENTBRIDGE"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", ministack.url)
    parcels, mails, caught = (ministack.queue(f"docs-{next(NAMES)}{end}") for end in ("", ".fifo", ""))
    ministack.bus("shop", caught)
    names = {"sqs:parcels": f"sqs:{parcels}", "sqs:mails.fifo": f"sqs:{mails}", "https://billing.example": billing.url}
    text = section("docs/reference/outbox.md", "Targets")
    for name, there in names.items():
        text = text.replace(name, there)
    mailed = []
    smtp = SimpleNamespace(send=lambda to, body, message_id: mailed.append((to, body)), close=lambda: None)
    space = {"smtp": smtp}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, space)
    assert space["place"]({"id": 7, "mail": "a@b.example"}) == "placed"
    assert sender.SENDER.drain(20) == 0
    assert [json.loads(one["Body"]) for one in ministack.messages(parcels)] == [{"order": 7}]
    assert [json.loads(one["Body"]) for one in ministack.messages(mails)] == [{"to": "a@b.example"}]
    (event,) = [json.loads(one["Body"]) for one in ministack.messages(caught)]
    assert (event["source"], event["detail"]["onceward"]["tenant"]) == ("orders", "eu")
    assert event["detail"]["onceward"]["onceward-parent"] == "orders.place:7"
    assert open_target("billing:x").send([OutboxMessage("k", "1")]) == [None]
    ((_, path, headers, _),) = billing.came
    assert (path, len(headers["X-Signature"])) == ("/charges", 64)
    assert open_target("mail:me").send([OutboxMessage("k", "hello")]) == [None]
    assert mailed == [("me", "hello")]
    space["once"].close()
