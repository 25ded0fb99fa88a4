"""Orders, payments and shipping: three services, two ledgers, messages between them; workers, relays and the queue are killed."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter

import psycopg
import pytest

from faults.campaign import Crew
from fixtures import closing_fixture
from onceward import Once
from places import SOURCES, WORKERS
from servers.dynoxide import Dynoxide
from servers.ministack import Ministack

pytestmark = pytest.mark.nightly

ORDERS = int(os.environ.get("ONCEWARD_CHAIN_ORDERS", "300"))  # 5000 by hand
LIMIT = 240.0 + ORDERS / 4  # seconds, on two slow cores that others use, too
SERVICES = ("orders", "orders", "payments", "shipping")
KILL_EVERY = 3.0  # seconds
# A DynamoDB that keeps its tables.
database = closing_fixture(lambda tmp_path: Dynoxide(tmp_path / "dynamodb"))
# A queue server that keeps its messages over a restart.
queues = closing_fixture(lambda tmp_path: Ministack("sqs", folder=tmp_path / "sqs"))


@pytest.fixture
def settings(database, queues, postgres15, aws, tmp_path):
    """What the services know of each other."""
    for table in ("charges", "reserved", "shipped"):
        database.table(table, {"id": "S"})
    schema = f"chain_{os.getpid()}"
    with psycopg.connect(postgres15.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.books (id bigint); CREATE TABLE {schema}.paid (id bigint)")
    made = {
        "journal": str(tmp_path / "journal"),
        "downstream": database.port,
        "sqs": queues.url,
        "dynamodb": f"dynamodb://ledger?endpoint={database.url}",
        "postgresql": f"{postgres15.url}?schema={schema}",
        "postgres": f"{postgres15.url}?options=-csearch_path%3D{schema}",
        **{service: f"sqs:{queues.queue(service)}" for service in ("orders", "payments", "shipping")},
    }
    for ledger in ("dynamodb", "postgresql"):
        init = [sys.executable, "-m", "onceward", "init", "--store", made[ledger]]
        subprocess.run(init, check=True, env={**os.environ, "PYTHONPATH": str(SOURCES)}, stdout=subprocess.DEVNULL)
    return made


def queue_of(settings, service):
    return settings[service].removeprefix("sqs:")


def ledgers(settings):
    return [Once(settings[name]) for name in ("dynamodb", "postgresql")]


def wait_until_done(crew, queues, settings):
    """Kill one every few seconds, relays and the queue in the middle, until no message is left anywhere."""
    relays = range(len(SERVICES), len(crew))
    disasters = [queues.restart, lambda: [crew.kill(number) for number in relays]]
    unsent = lambda once: lambda: len(list(once.ledger.records(status="UNSENT")))
    waiting = lambda service: lambda: queues.left(queue_of(settings, service))
    first, second = map(unsent, ledgers(settings))
    # As messages go, so that none slips through.
    places = [waiting("orders"), first, waiting("payments"), second, waiting("shipping")]
    began = killed = time.monotonic()
    while time.monotonic() - began < LIMIT:
        left = [place() for place in places]
        if not any(left):
            return time.monotonic() - began
        if disasters and left[0] < ORDERS * len(disasters) // 3:
            disasters.pop()()
        if time.monotonic() - killed > KILL_EVERY:
            killed = time.monotonic()
            crew.kill(random.randrange(len(SERVICES)))
        time.sleep(0.2)
    raise AssertionError(f"not done after {LIMIT:.0f} s: {left}")


def test_each_order_is_paid_and_shipped_once_while_all_are_killed(database, queues, settings, tmp_path):
    for first in range(0, ORDERS, 10):
        entries = [{"Id": str(n), "MessageBody": json.dumps({"id": n})} for n in range(first, first + 10)]
        queue = queue_of(settings, "orders")
        assert not queues.ask("AmazonSQS.SendMessageBatch", QueueUrl=queue, Entries=entries).get("Failed")
    worker = [sys.executable, WORKERS / "chain.py"]
    commands = [[*worker, service, json.dumps(settings)] for service in SERVICES]
    relay = [sys.executable, "-m", "onceward", "relay", "--every", "1s", "--store"]
    commands += [[*relay, settings["dynamodb"]], [*relay, settings["postgresql"]]]
    with Crew(tmp_path / "crew.log", commands, AWS_ENDPOINT_URL_SQS=settings["sqs"]) as crew:
        took = wait_until_done(crew, queues, settings)

    journal = [line.split() for line in (tmp_path / "journal").read_text().splitlines()]
    told = lambda *what: Counter(int(words[2]) for words in journal if words[:2] == [*what])
    made, asked = {what: told("made", what) for what in ("log", "mail")}, told("asked", "charge")
    on_dynamodb, on_postgresql = ledgers(settings)
    parked = {record.key for record, _ in on_dynamodb.ledger.records("orders", status="PARKED")}
    repeats = {"charge": asked.total() - len(asked), "log": made["log"].total() - len(made["log"])}
    print(f"{took:.0f} s, {crew.kills} kills, {len(parked)} parked, repeats of steps: {repeats}")
    assert crew.kills >= 5

    # What deduplicates or fences downstream, and what commits with the record: once each.
    everyone = set(range(ORDERS))
    assert Counter(int(item["order"]["S"]) for item in database.items("charges")) == Counter(everyone)
    assert {item["n"]["N"] for item in database.items("reserved")} == {"1"}
    # Repeats of what nothing deduplicates come only from kills; at most the handlers that ran at once in the killed one.
    assert set(made["log"]) == everyone
    assert repeats["log"] <= 8 * crew.kills
    # A step that parks is made at most once, and a key is parked only if its mail may have been made.
    assert max(made["mail"].values()) == 1
    numbers = {int(key.rpartition(":")[2]) for key in parked}
    assert len(parked) <= 8 * crew.kills
    assert everyone - set(made["mail"]) <= numbers
    paid = everyone - numbers
    with psycopg.connect(settings["postgres"]) as connection:
        for table in ("books", "paid"):
            rows = connection.execute(f"SELECT id FROM {table}").fetchall()
            assert Counter(number for (number,) in rows) == Counter(paid), f"{table}: one each"
    shipped = {item["id"]["S"]: item["n"]["N"] for item in database.items("shipped")}
    assert shipped == {f"{number}.{parcel}": "1" for number in paid for parcel in (1, 2)}
    for ledger in (on_dynamodb, on_postgresql):
        assert not list(ledger.ledger.records(status=["IN_PROGRESS", "RELEASED", "UNSENT"]))
        ledger.close()
