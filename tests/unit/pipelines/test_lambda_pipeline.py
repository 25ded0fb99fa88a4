"""One stock handler takes the events of any trigger of Lambda."""

import base64
import json

import pytest

from onceward.errors import OncewardError
from onceward.pipelines import lambda_handler, on_lambda
from queues import lambda_events as events


@pytest.fixture
def deployed(pipelines, monkeypatch):
    """Give a function that deploys a pipeline."""
    monkeypatch.setattr(on_lambda, "_PIPELINES", {})

    def deploy(*, steps="", effect="", sinks="", source="lambda: {direct: true}"):
        pipelines.functions(f"def take(message):\n    made.append(message)\n    {effect}\n")
        text = f"steps:\n{steps}  - call: {{function: 'SHOP:take'}}\n{sinks}"
        head = f"name: orders\nledger: {pipelines.ledger}\nsource: {{{source}}}\n"
        pipelines.write(text, head=head, guard="")
        monkeypatch.setenv("LAMBDA_TASK_ROOT", str(pipelines.folder))
        monkeypatch.setenv("ONCEWARD_PIPELINE", pipelines.file.name)
        return pipelines

    return deploy


def call(event):
    return lambda_handler(json.loads(json.dumps(event)), events.Context())


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (events.sqs({"id": 1}), {"batchItemFailures": []}),
        (events.fifo(("g", {"id": 1})), {"batchItemFailures": []}),
        (events.kinesis({"id": 1}), {"batchItemFailures": []}),
        (events.kafka({0: [{"id": 1}]}), {"batchItemFailures": []}),
        (events.rabbitmq({"id": 1}), None),
        (events.activemq({"id": 1}), None),
        (events.sns({"id": 1}), None),
        (events.eventbridge({"id": 1}), None),
        ({"id": 1}, None),
    ],
    ids=lambda value: on_lambda.kind_of(value) if value and "batchItemFailures" not in value else "",
)
def test_an_event_of_any_trigger_takes_effect_once(deployed, event, answer):
    pipelines = deployed()
    assert call(event) == answer
    assert call(event) == answer
    assert pipelines.made == [{"id": 1}]


def test_a_record_that_fails_is_reported_alone(deployed):
    deployed(effect="assert message['id'] != 2")
    event = events.sqs({"id": 1}, {"id": 2}, {"id": 3})
    failed = event["Records"][1]["messageId"]
    assert call(event) == {"batchItemFailures": [{"itemIdentifier": failed}]}


def test_firehose_gets_what_stdout_gets_and_drops_the_rest(deployed):
    deployed(steps="  - filter: {where: message.keep}\n", sinks="sinks: [{stdout: }]\n")
    answer = call(events.firehose({"id": 1, "keep": True}, {"id": 2, "keep": False}))
    told = [(one["result"], json.loads(base64.b64decode(one["data"]))) for one in answer["records"]]
    assert told == [("Ok", {"id": 1, "keep": True}), ("Dropped", {"id": 2, "keep": False})]


@pytest.mark.parametrize("source", ["lambda: {}", "sqs: {queue: orders}"])
def test_an_event_of_no_known_trigger_is_refused_unless_it_is_asked_for(deployed, aws, source):
    deployed(source=source, effect="raise AssertionError")
    with pytest.raises(OncewardError, match="an event with body, requestContext is of no trigger that pipeline orders"):
        call({"requestContext": {}, "body": "secret"})
