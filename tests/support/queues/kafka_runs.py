"""Runs of a Kafka worker in tests: to the end of its topic, or beside the test."""

import json

from observing import note_outcomes
from onceward.consumers.dead_letters import GROUP, retry_name
from onceward.consumers.retry_topics import CLOCK
from onceward.kafka import KafkaWorker
from waiting import working as at_work

PATIENCE = 180.0
QUICK = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 500}


def order(number, **more):
    return json.dumps({"id": number, **more}).encode()


def drain(once, kafka, topic, handler, **options):
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    worker = KafkaWorker(once, topic, handler, servers=kafka.servers, group=topic, settings=QUICK, **options)
    worker.run(until_empty=True)
    return told


def working(once, kafka, topic, handler, **options):
    options = {"group": topic, "settings": QUICK, **options}
    return at_work(KafkaWorker(once, topic, handler, servers=kafka.servers, **options))


def retries(kafka, topic):
    """The records of the retry topic, without those that only ask for the broker's time: a busy machine needs some."""
    records = kafka.read(retry_name(topic))
    return [record for record in records if (GROUP, CLOCK.encode()) not in record.headers]


def headers(record):
    return {name: value.decode() for name, value in record.headers}
