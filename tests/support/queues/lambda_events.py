"""Events in the shapes that Lambda gives to functions, as the AWS documentation of each source shows them, without most of what nobody reads."""

from __future__ import annotations

import base64
import copy
import json

from onceward.aws import Delivery


def encoded(data) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def body_of(payload) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload)


class Context:
    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"

    def __init__(self, millis=30_000):
        self.millis = millis

    def get_remaining_time_in_millis(self):
        return self.millis


QUEUE = "arn:aws:sqs:us-east-2:123456789012:my-queue"


def sqs_record(message_id, payload, *, group=None):
    attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183", "SenderId": "AIDAIENQZJOLO23YVJ4VO"}
    if group is not None:
        attributes |= {"MessageGroupId": group}
    record = {"messageId": message_id, "body": body_of(payload), "attributes": attributes, "messageAttributes": {}}
    record |= {"receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a...", "eventSource": "aws:sqs"}
    return record | {"eventSourceARN": QUEUE if group is None else f"{QUEUE}.fifo"}


def sqs(*payloads):
    return {"Records": [sqs_record(f"m-{number}", payload) for number, payload in enumerate(payloads)]}


def fifo(*groups_and_payloads):
    numbered = enumerate(groups_and_payloads)
    return {"Records": [sqs_record(f"m-{number}", payload, group=group) for number, (group, payload) in numbered]}


def sns_envelope(payload, message_id="d88d4479-6ec0-54fe-b63f-1cf9df4bb16e"):
    """What a queue gets from a topic without raw message delivery."""
    topic = "arn:aws:sns:eu-west-1:231436140809:topic"
    return {"Type": "Notification", "MessageId": message_id, "TopicArn": topic, "Message": body_of(payload)}


STREAM = "arn:aws:kinesis:us-east-2:123456789012:stream/lambda-stream"
SHARD = "shardId-000000000006"


def kinesis_record(number, data):
    content = encoded(data if isinstance(data, bytes) else body_of(data))
    inner = {"partitionKey": "1", "sequenceNumber": str(number), "data": content}
    source = {"eventSource": "aws:kinesis", "eventSourceARN": STREAM}
    return {"kinesis": inner, "eventID": f"{SHARD}:{number}", **source}


FIRST = 49590338271490256608559692538361571095921575989136588898


def kinesis(*payloads):
    return {"Records": [kinesis_record(FIRST + number, payload) for number, payload in enumerate(payloads)]}


def change_record(number, **images):
    change = {"Keys": {"Id": {"N": str(number)}}, **images, "SequenceNumber": f"{11100000000000000000 + number}"}
    arn = "arn:aws:dynamodb:us-west-2:123456789012:table/orders/stream/2015-06-27T00:48:05.899"
    event = {"eventID": f"c4ca4238a0b923820dcc509a6f7584{number:02}", "eventName": "MODIFY", "dynamodb": change}
    return event | {"eventSource": "aws:dynamodb", "eventSourceARN": arn}


def dynamodb(count):
    return {"Records": [change_record(n, NewImage={"Id": {"N": str(n)}}) for n in range(count)]}


def activemq(*payloads):
    """An event of a queue of ActiveMQ at Amazon MQ."""
    same = {"destination": {"physicalName": "testQueue"}, "properties": {"index": "1", "count": 1}}
    bodies = enumerate(map(body_of, payloads))
    messages = [{"messageID": f"ID:b-{number}", "data": encoded(body), **same} for number, body in bodies]
    broker = "arn:aws:mq:us-west-2:123456789012:broker:test:b-1"
    return {"eventSource": "aws:mq", "eventSourceArn": broker, "messages": messages}


def rabbitmq(*payloads, **properties):
    """An event of two queues at Amazon MQ: all messages but the last one are of the first."""
    headers = {"header1": {"bytes": [118, 97, 108, 117, 101, 49]}, "numberInHeader": 10}
    messages = []
    for number, payload in enumerate(payloads):
        told = {"headers": headers, "messageId": f"m-{number}", **properties}
        messages.append({"basicProperties": told, "data": encoded(body_of(payload))})
    return {
        "eventSource": "aws:rmq",
        "eventSourceArn": "arn:aws:mq:us-west-2:111122223333:broker:pizzaBroker:b-9bcfa592-423a-4942-879d-eb284b418fc8",
        "rmqMessagesByQueue": {"pizzaQueue::/": messages[:-1], "saladQueue::/shop": messages[-1:]},
    }


def kafka_record(topic, partition, offset, payload):
    record = {"topic": topic, "partition": partition, "offset": offset, "timestamp": 1545084650987}
    record |= {"key": "cmVjb3JkS2V5", "headers": [{"headerKey": [104, 101, 97, 100]}]}
    return record if payload is None else record | {"value": encoded(body_of(payload))}


def kafka(partitions):
    """An event of MSK; ``partitions`` maps a partition of ``mytopic`` to its payloads."""
    records = {}
    for partition, payloads in partitions.items():
        of = [kafka_record("mytopic", partition, 15 + number, payload) for number, payload in enumerate(payloads)]
        records[f"mytopic-{partition}"] = of
    arn = "arn:aws:kafka:us-east-1:123456789012:cluster/Sales/abcd1234-4"
    servers = "b-2.demo.kafka.us-east-1.amazonaws.com:9092,b-1.demo.kafka.us-east-1.amazonaws.com:9092"
    return {"eventSource": "aws:kafka", "eventSourceArn": arn, "bootstrapServers": servers, "records": records}


def self_managed_kafka(partitions):
    event = kafka(partitions)
    del event["eventSourceArn"]
    return event | {"eventSource": "SelfManagedKafka"}


def sns(payload):
    topic = "arn:aws:sns:us-east-2:123456789012:sns-lambda"
    told = {"MessageId": "95df01b4-ee98-5cb9-9903-4c221d41eb5e", "Type": "Notification", "TopicArn": topic}
    return {"Records": [{"EventSource": "aws:sns", "Sns": told | {"Message": body_of(payload)}}]}


def eventbridge(detail):
    event = {"version": "0", "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718", "time": "2017-12-22T18:43:48Z"}
    return event | {"detail-type": "Order placed", "source": "shop", "detail": detail}


def s3_record(key="photos/a+b%281%29.jpg", *, version="yd3d4HaWOT2z", sequencer="0C0F6F405D6ED209E1"):
    about = {"key": key, "size": 1305107, "eTag": "b21b84d653bb07b05b1e6b33684dc11b"}
    about |= {} if version is None else {"versionId": version}
    about |= {} if sequencer is None else {"sequencer": sequencer}
    stored = {"bucket": {"name": "pictures", "arn": "arn:aws:s3:::pictures"}, "object": about}
    when = {"eventTime": "2019-09-03T19:37:27.192Z", "eventName": "ObjectCreated:Put"}
    return {"eventSource": "aws:s3", **when, "s3": stored}


def s3(*keys):
    return {"Records": [s3_record(key) for key in keys]}


def firehose(*payloads):
    records = []
    for number, payload in enumerate(payloads):
        content = encoded(payload if isinstance(payload, bytes) else body_of(payload))
        name = f"4964091282117881783351798646616894514717062757285573427400000{number}"
        records.append({"recordId": name, "data": content})
    stream = "arn:aws:firehose:us-east-2:123456789012:deliverystream/logs"
    name = "2b4d1ad9-2f48-94bd-a088-767c317e994a"
    return {"invocationId": name, "deliveryStreamArn": stream, "records": records}


def changed(event, *path, to=...):
    """Return a copy of ``event`` with what is at ``path`` replaced, or removed."""
    event = copy.deepcopy(event)
    inner = event
    for step in path[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return event


def places(value, path=()):
    """Yield the path of everything in an event."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def keys(once):
    return sorted(once.store.records)


def given(once, wrapper, event, **options):
    """Return what a function without annotations is given of ``event``, and the deliveries."""
    seen = []

    @wrapper(once, **options)
    def handle(payload, delivery: Delivery):
        seen.append((payload, delivery))

    handle(event, Context())
    return [payload for payload, _ in seen], [delivery for _, delivery in seen]


def refusing(payload):
    raise AssertionError("it ran")
