"""The outbox's targets at AWS, on servers that take messages, and refuse, lose and delay them."""

import base64
import json
import re
from itertools import count
from types import SimpleNamespace

import pytest

from fixtures import closing_fixture
from onceward.aws.targets import sending as targets_sending
from onceward.outbox import MessageNotSent, MessageRefused, OutboxMessage, sender
from onceward.outbox.targets import open_target
from printed.pages import section
from servers.needs import numbers
from servers.proxy import Fault, Refuse
from web.http_servers import Answering

pytestmark = pytest.mark.sampled(passing=3)

NAMES = numbers()
KEYS = count()


def message(body='{"order": 1}', **more):
    return OutboxMessage(f"00000000-0000-4000-8000-{next(KEYS):012}", body, **more)


ACTIONS = {
    "sqs": "SendMessageBatch",
    "sns": "PublishBatch",
    "eventbridge": "PutEvents",
    "kinesis": "PutRecords",
    "firehose": "PutRecordBatch",
}


class Place:
    """A target behind the proxy, and the queue in which its messages end."""

    def __init__(self, kind, fifo, ministack, front):
        end = ".fifo" if fifo else ""
        name = f"target-{next(NAMES)}{end}"
        self.kind, self.fifo, self.front = kind, fifo, front
        self.group = {"group": "g"} if fifo else {}
        self._ministack = ministack
        if kind == "kinesis":
            self.stream = ministack.stream(name, 2)
            self.address = f"kinesis:{self.stream}"
        elif kind == "firehose":
            self.bucket = ministack.bucket(name)
            self.address = f"firehose:{ministack.delivery_stream(name, self.bucket)}"
        else:
            self.queue = ministack.queue(name)
        if kind == "sqs":
            self.address = f"sqs:{self.queue}"
        elif kind == "sns":
            self.address = f"sns:{ministack.topic(name)}"
            ministack.subscribe(self.address.removeprefix("sns:"), self.queue, raw=True)
        elif kind == "eventbridge":
            ministack.bus(name, self.queue)
            self.address = f"eventbridge:{name}?source=shop&detail-type=Paid"
        self.target = open_target(self.address)
        self.action = ACTIONS[kind]

    def message(self, body='{"order": 1}', **more):
        return message(body, **(self.group | more))

    def found(self):
        """Return what has arrived, by key: its body and its headers."""
        found = {}
        if self.kind in ("kinesis", "firehose"):
            for data in self.data():
                record = json.loads(data)
                headers = record.pop("onceward")
                found[headers.pop("onceward-key")] = json.dumps(record), headers
            return found
        for one in self._ministack.messages(self.queue):
            if self.kind == "eventbridge":
                detail = json.loads(one["Body"])["detail"]
                headers = detail.pop("onceward")
                body = json.dumps(detail)
            else:
                headers = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
                body = one["Body"]
            found[headers.pop("onceward-key")] = body, headers
        return found

    def data(self):
        """Return the bytes of all records of a stream."""
        if self.kind == "kinesis":
            return [one["Data"] for one in self._ministack.records(self.stream)]
        return list(self._ministack.objects(self.bucket).values())


@pytest.fixture
def placed(ministack, front, monkeypatch):
    for service in ("SQS", "SNS", "EVENTBRIDGE", "KINESIS", "FIREHOSE"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", front.url)
    monkeypatch.setattr(targets_sending, "BEGIN_WITHIN", 600.0)  # a busy machine takes its time
    made = []

    def place(kind, *, fifo=False):
        made.append(Place(kind, fifo, ministack, front))
        return made[-1]

    yield place
    for one in made:
        one.target.close()


ALL = [
    ("sqs", False),
    ("sqs", True),
    ("sns", False),
    ("sns", True),
    ("eventbridge", False),
    ("kinesis", False),
    ("firehose", False),
]


@pytest.fixture(params=ALL, ids=["sqs", "sqs.fifo", "sns", "sns.fifo", "eventbridge", "kinesis", "firehose"])
def place(request, placed):
    return placed(request.param[0], fifo=request.param[1])


def kinds(told):
    return [None if one is None else type(one) for one in told]


def test_messages_arrive_with_key_and_headers_in_one_request(place):
    sent = [place.message(f'{{"order": {n}}}', headers={"onceward-parent": f"shop:{n}"}) for n in range(10)]
    for one in sent:
        place.target.check(one)
    assert place.target.send(sent) == [None] * 10
    assert place.found() == {m.key: (m.body, m.headers) for m in sent}
    assert place.front.actions == [place.action]


def refusing(body, code):
    """Refuse each batch that has a message with this text."""

    def rule(seen):
        sent = json.dumps(seen.body) + "".join(
            base64.b64decode(one["Data"]).decode() for one in seen.body.get("Records", [])
        )
        return Refuse(code, 400) if body in sent else None

    return rule


REFUSALS = {
    "sqs": "InvalidMessageContents",
    "sns": "InvalidParameter",
    "eventbridge": "ValidationException",
    "kinesis": "InvalidArgumentException",
    "firehose": "InvalidArgumentException",
}


def test_of_a_refused_batch_only_the_message_that_is_meant_is_refused(place):
    sent = [place.message(json.dumps({"name": name})) for name in ("one", "bad", "three")]
    place.front.rule = refusing("bad", REFUSALS[place.kind])
    told = place.target.send(sent)
    assert kinds(told) == [None, MessageRefused, None]
    assert set(place.found()) == {sent[0].key, sent[2].key}


PASSING = [
    *(Refuse(code, 403) for code in ("AccessDenied", "AccessDeniedException", "KMSDisabled", "NotFound")),
    *(Refuse(code, 403) for code in ("QueueDoesNotExist", "Throttling", "NoIdea")),
    Refuse("InternalError", 500),
    Refuse("InternalError", 503),
    Fault(lose_request=True),
    Fault(lose_reply=True),
    Fault(raw=b"HTTP/1.1 200 OK\r\n\r\n?"),
]


@pytest.mark.parametrize("passing", PASSING, ids=str)
def test_what_passes_or_a_deploy_can_fix_is_sent_later(place, passing):
    place.front.rule = lambda seen: passing
    told = place.target.send([place.message(), place.message()])
    assert kinds(told) == [MessageNotSent] * 2
    if isinstance(passing, Refuse) and passing.status == 403:
        assert passing.code.removesuffix("Exception") in str(told[0])


def test_a_wrong_clock_is_corrected_within_the_send(place):
    first = iter([Refuse("RequestExpired", 403)])
    place.front.rule = lambda seen: next(first, None)
    assert kinds(place.target.send([place.message()])) == [None]


@pytest.mark.parametrize(
    ("kind", "answers", "code", "error"),
    [
        ("eventbridge", "Entries", "MalformedDetail", MessageRefused),
        ("kinesis", "Records", "InternalFailure", MessageNotSent),
        ("firehose", "RequestResponses", "InternalFailure", MessageNotSent),
    ],
)
def test_one_record_of_a_batch_can_fail(placed, kind, answers, code, error):
    place = placed(kind)

    def edit(answer):
        answer[answers][1] = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slower"}
        answer[answers][2] = {"ErrorCode": code, "ErrorMessage": "no"}
        return answer

    place.front.rule = lambda seen: Fault(edit_reply=edit)
    told = place.target.send([place.message() for _ in range(4)])
    assert kinds(told) == [None, MessageNotSent, error, None]
    assert "ProvisionedThroughputExceeded (slower)" in str(told[1])


def test_large_messages_do_not_share_a_request_and_a_queue_without_a_url_is_asked_for(placed, ministack):
    place = placed("sqs")
    target = open_target(f"sqs:{ministack.queue_arn(place.queue)}")
    sizes = [100_000, 150_000, 20_000, 300_000, 5, 5]
    assert target.send([place.message("x" * size) for size in sizes]) == [None] * 6
    bodies = [seen.body for seen in place.front.seen]
    assert "QueueOwnerAWSAccountId" in bodies.pop(0)
    sent = [[len(entry["MessageBody"]) for entry in body["Entries"]] for body in bodies]
    assert sent == [[100_000, 150_000], [20_000], [300_000], [5, 5]]
    target.close()
    lost = open_target("sqs:nowhere")
    (told,) = lost.send([place.message()])
    assert isinstance(told, MessageNotSent)
    assert "QueueDoesNotExist" in str(told)


billing = closing_fixture(Answering)


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
