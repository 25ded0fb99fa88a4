"""Reads a shard without Lambda: it gives the handler what Lambda would, and moves its checkpoint up to the first record that failed."""

import base64
import pathlib
import sys
import time

import boto3
from shop import charge

kinesis = boto3.client("kinesis")
stream = kinesis.describe_stream(StreamName="orders")["StreamDescription"]
shard = stream["Shards"][0]["ShardId"]
checkpoint = pathlib.Path(f"{shard}.checkpoint")


def iterator() -> str:
    """Return where to read on."""
    place = {"ShardIteratorType": "TRIM_HORIZON"}
    if checkpoint.exists():
        place = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": checkpoint.read_text()}
    return kinesis.get_shard_iterator(StreamName="orders", ShardId=shard, **place)["ShardIterator"]


def as_lambda_gives_it(record: dict) -> dict:
    """Return a record as Lambda gives it to a handler."""
    number = record["SequenceNumber"]
    data = base64.b64encode(record["Data"]).decode()
    return {
        "eventSource": "aws:kinesis",
        "eventSourceARN": stream["StreamARN"],
        "eventID": f"{shard}:{number}",
        "kinesis": {"sequenceNumber": number, "partitionKey": record["PartitionKey"], "data": data},
    }


def handle(records: list[dict]) -> bool:
    """Handle records; return whether all are done."""
    answer = charge({"Records": [as_lambda_gives_it(record) for record in records]}, None)
    failed = [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]
    numbers = [record["SequenceNumber"] for record in records]
    done = numbers[: numbers.index(failed[0])] if failed else numbers
    if done:
        checkpoint.write_text(done[-1])  # only what is recorded in the ledger
    return not failed


while True:
    answer = kinesis.get_records(ShardIterator=iterator(), Limit=100)
    if answer["Records"] and not handle(answer["Records"]):
        time.sleep(1)  # the failed record comes again
    if not answer["Records"] and "--until-empty" in sys.argv:
        break
