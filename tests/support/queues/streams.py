"""An event source mapping from a Kinesis stream to a Lambda function, with partial batch responses.

MiniStack has mappings of its own, but for streams they take every answer for a success, whatever it reports as failed. This
one reads a real stream and calls a real function, by the rules of the Lambda Developer Guide ("Configuring partial batch
response with Kinesis Data Streams and Lambda"): each shard in order, one batch at a time; after an error the whole batch
again; after reported failures again from the lowest sequence number; an empty identifier fails the batch.
"""

import threading
from typing import NamedTuple, Self

from servers.ministack import Ministack
from servers.needs import REGION

PAUSE = 0.1  # seconds before the next look; AWS takes a second or more


class Invocation(NamedTuple):
    failed_at: str | None  # the record from which it has to go on


class StreamMapping:
    """A mapping that runs inside of ``with``."""

    def __init__(self, server: Ministack, function: str, stream: str, batch: int) -> None:
        self.invocations: list[Invocation] = []
        self.passed: list[str] = []
        self._server, self._function, self._stream, self._batch = server, function, stream, batch
        self._stopped = threading.Event()
        shown = server.ask("Kinesis_20131202.ListShards", StreamARN=stream)["Shards"]
        self._threads = [threading.Thread(target=self._follow, args=(shard["ShardId"],)) for shard in shown]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _follow(self, shard: str) -> None:
        done: str | None = None  # the sequence number of the last record that is through
        while not self._stopped.is_set():
            batch = self._read(shard, done)
            if batch:
                done = self._through(shard, batch) or done
            else:
                self._stopped.wait(PAUSE)

    def _through(self, shard: str, batch: list[dict]) -> str | None:
        """Call the function until all of ``batch`` are through, or it is stopped; return the last one that is."""
        last = None
        while batch and not self._stopped.is_set():
            sequences = [record["SequenceNumber"] for record in batch]
            event = {"Records": [self._record(shard, record) for record in batch]}
            answer, failed = self._server.invoke(self._function, event)
            failed_at = sequences[0] if failed else lowest(sequences, answer)
            self.invocations.append(Invocation(failed_at))
            passed = len(sequences) if failed_at is None else sequences.index(failed_at)
            if passed:
                last, batch = sequences[passed - 1], batch[passed:]
                self.passed += sequences[:passed]
            if failed_at is not None:
                self._stopped.wait(PAUSE)
        return last

    def _read(self, shard: str, done: str | None) -> list[dict]:
        where = {"ShardIteratorType": "TRIM_HORIZON"}
        if done is not None:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": done}
        asked = {"StreamARN": self._stream, "ShardId": shard, **where}
        iterator = self._server.ask("Kinesis_20131202.GetShardIterator", **asked)["ShardIterator"]
        return self._server.ask("Kinesis_20131202.GetRecords", ShardIterator=iterator, Limit=self._batch)["Records"]

    def _record(self, shard: str, record: dict) -> dict:
        return {
            "kinesis": {
                "kinesisSchemaVersion": "1.0",
                "partitionKey": record["PartitionKey"],
                "sequenceNumber": record["SequenceNumber"],
                "data": record["Data"],
                "approximateArrivalTimestamp": record["ApproximateArrivalTimestamp"],
            },
            "eventSource": "aws:kinesis",
            "eventVersion": "1.0",
            "eventID": f"{shard}:{record['SequenceNumber']}",
            "eventName": "aws:kinesis:record",
            "invokeIdentityArn": "arn:aws:iam::000000000000:role/test",
            "awsRegion": REGION,
            "eventSourceARN": self._stream,
        }


def lowest(sequences: list[str], answer: object) -> str | None:
    """Return the sequence number that a batch has to go on from by what the function answered; None: it is through."""
    failures = (answer or {}).get("batchItemFailures") or []
    named = {failure.get("itemIdentifier") for failure in failures}
    if not named:
        return None
    if not named <= set(sequences):
        return sequences[0]  # an empty identifier, or none, or that of no record in this batch
    return min(named, key=int)
