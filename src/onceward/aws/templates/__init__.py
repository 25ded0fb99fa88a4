"""A ledger as code: ``onceward init --print cloudformation|sam|terraform``.

It adds what feeds a function, with timeouts that fit each other, to the document that the store describes
(``stores/dynamodb/template.py``): a queue, its dead letters, the mapping, and alarms.
CloudFormation reads it as JSON; ``terraform`` writes it in Terraform's language.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from onceward.aws.doctor.checks import LAMBDA_RECEIVES, TIMEOUTS
from onceward.aws.templates.terraform import terraform
from onceward.observe import cloudwatch

__all__ = ["FORMS", "Consumer", "render"]

Document = dict[str, Any]

LONGEST: Final = 14 * 86400  # seconds that a queue can keep a message
_POLL: Final = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
_BATCH: Final = 10  # messages an invocation; more need a batching window
_DEAD: Final = cloudwatch.Alarm(
    "DeadLetters",
    "The queue has given messages up: onceward redrive.",
    "ApproximateNumberOfMessagesVisible",
    period=300,
    statistic="Maximum",
)
_WHAT: Final = (
    "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it.\n"
    "# The table stays when the stack is deleted, because without its records everything would run again.\n"
)
_CLOUDFORMATION: Final = _WHAT + (
    "# aws cloudformation deploy --stack-name NAME --template-file FILE --capabilities CAPABILITY_IAM\n"
)
_SAM: Final = _WHAT + "# sam build && sam deploy --guided --capabilities CAPABILITY_IAM\n"

_SAM_HEAD: Final = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}

_WRITERS: Final[Mapping[str, Callable[[Document], str]]] = {
    "cloudformation": lambda document: _CLOUDFORMATION + _text(document),
    "terraform": terraform,
    "sam": lambda document: _SAM + _text({**_SAM_HEAD, **document}),
}
FORMS: Final = tuple(_WRITERS)


class Consumer(NamedTuple):
    """A Lambda function that consumes a queue.

    Attributes:
        function: its name.
        timeout: its timeout in seconds.
        queue: the ARN of its queue; None makes a queue, with one for dead letters.
        topic: the ARN of the SNS topic to which alarms go; None makes no alarms.
    """

    function: str
    timeout: int
    queue: str | None = None
    topic: str | None = None


def render(form: str, document: Document, consumer: Consumer | None = None) -> str:
    """Return a document as text in one of :data:`FORMS`. A ``consumer`` adds its queue and mapping.

    "sam" declares the function itself, for you to complete. All others expect that it exists.
    """
    if consumer is not None:
        document = (_with_function if form == "sam" else _with_consumer)(document, consumer)
    return _WRITERS[form](document)


def _text(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _with_consumer(document: Document, consumer: Consumer) -> Document:
    """Return the document with the event source mapping of a function that exists, and with what it needs."""
    document, source = _with_queue(document, consumer)
    document["Parameters"] = {
        "FunctionRole": {"Type": "String", "Description": f"The name of the role of the function {consumer.function}"}
    }
    # Lambda refuses a mapping whose function may not receive from the queue.
    document["Resources"]["HandlersPolicy"]["Properties"]["Roles"] = [{"Ref": "FunctionRole"}]
    document["Resources"]["Mapping"] = {
        "Type": "AWS::Lambda::EventSourceMapping",
        "DependsOn": ["HandlersPolicy"],
        "Properties": {"FunctionName": consumer.function, **_mapping("EventSourceArn", source)},
    }
    return document


def _with_function(document: Document, consumer: Consumer) -> Document:
    """Return the document with the function itself, as SAM declares it, and its queue as an event."""
    document, source = _with_queue(document, consumer)
    document["Resources"]["Function"] = {
        "Type": "AWS::Serverless::Function",
        "Properties": {
            "FunctionName": consumer.function,
            "CodeUri": "src/",
            "Handler": "app.handler",
            "Runtime": "python3.13",
            "Timeout": consumer.timeout,
            "Environment": {"Variables": {"ONCEWARD_STORE": document["Outputs"]["LedgerUrl"]["Value"]}},
            "Policies": [{"Ref": "HandlersPolicy"}],
            "Events": {"Queue": {"Type": "SQS", "Properties": _mapping("Queue", source)}},
        },
    }
    return document


def _mapping(names: str, source: object) -> Document:
    # Without partial responses Lambda deletes failed messages with the others (doctor, "partial responses").
    return {names: source, "BatchSize": _BATCH, "FunctionResponseTypes": ["ReportBatchItemFailures"]}


def _with_queue(document: Document, consumer: Consumer) -> tuple[Document, object]:
    """Return a copy with the queue, rights on it and alarms, and the queue's ARN."""
    document = copy.deepcopy(document)
    resources, source = document["Resources"], consumer.queue
    arn: object = source
    if source is None:
        arn = {"Fn::GetAtt": ["Queue", "Arn"]}
        resources = document["Resources"] = {**_queues(consumer), **resources}
        output = {"Description": "Send messages here", "Value": {"Ref": "Queue"}}
        document["Outputs"]["QueueUrl"] = output
    policy = resources["HandlersPolicy"]["Properties"]["PolicyDocument"]
    policy["Statement"].append({"Sid": "Queue", "Effect": "Allow", "Action": _POLL, "Resource": arn})
    if consumer.topic is not None:
        resources |= cloudwatch.resources(
            consumer.function, cloudwatch.NAMESPACE, consumer.topic, prefix=consumer.function
        )
        if source is None:
            name = {"QueueName": {"Fn::GetAtt": ["DeadLetterQueue", "QueueName"]}}
            alarm = cloudwatch.resource(_DEAD, f"{consumer.function}-{_DEAD.name}", "AWS/SQS", name, consumer.topic)
            resources[_DEAD.name] = alarm
    return document, arn


def _queues(consumer: Consumer) -> Document:
    redrive = {
        "deadLetterTargetArn": {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]},
        "maxReceiveCount": LAMBDA_RECEIVES,
    }
    visible = TIMEOUTS * consumer.timeout
    queue = {
        "QueueName": f"{consumer.function}-queue",
        "VisibilityTimeout": visible,
        "ReceiveMessageWaitTimeSeconds": 20,
        "RedrivePolicy": redrive,
    }
    dead = {"QueueName": f"{consumer.function}-dead-letters", "MessageRetentionPeriod": LONGEST}
    return {
        "DeadLetterQueue": {"Type": "AWS::SQS::Queue", "Properties": dead},
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": queue},
    }
