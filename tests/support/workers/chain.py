"""A worker of test_chain_killed.py, which is killed at any moment: ``python chain.py SERVICE SETTINGS``: orders → payments → shipping."""

import json
import os
import random
import sys
import time
from contextlib import suppress

import psycopg

from onceward import NOT_MADE, Claim, Made, Once, StepMade
from onceward.aws.sqs.broker import SqsWorker
from servers.dynoxide import Dynoxide
from stores.ledgers import counting

SERVICE, GIVEN = sys.argv[1], json.loads(sys.argv[2])
LEASE, VISIBILITY = 4.0, 5  # seconds
journal = os.open(GIVEN["journal"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
downstream = Dynoxide.at(GIVEN["downstream"])


def note(*words):
    os.write(journal, (" ".join(map(str, words)) + "\n").encode())


def pause():
    time.sleep(random.random() * 0.002)  # long enough to be killed in


def count(table, name):
    downstream.ask("UpdateItem", **counting(table, name))
    return name


def charge(key, number):
    """A bank that deduplicates by key: the first request counts."""
    item = {"id": {"S": key}, "order": {"S": str(number)}}
    with suppress(Exception):  # it is there
        downstream.ask("PutItem", TableName="charges", Item=item, ConditionExpression="attribute_not_exists(id)")
    note("asked", "charge", number)
    pause()
    return key


def reserve(number, attempt):
    pause()
    count("reserved", str(number))
    pause()
    return f"reserved in {attempt}"


def find_reservation(_, number, attempt):
    found = downstream.ask("GetItem", TableName="reserved", Key={"id": {"S": str(number)}}, ConsistentRead=True)
    return Made(f"found in {attempt}") if found.get("Item") else NOT_MADE


def tell(what, number, attempt):
    pause()
    note("made", what, number, attempt)
    pause()
    return attempt


def place(order: dict, claim: Claim) -> int:
    number = order["id"]
    claim.step("charge", charge, claim.key("charge"), number)
    claim.step("reserve", reserve, number, claim.attempt, on_lapse=find_reservation)
    claim.step("log", tell, "log", number, claim.attempt)
    claim.step("mail", tell, "mail", number, claim.attempt, on_lapse="park")
    claim.send(GIVEN["payments"], {"id": number})
    return number


def pay(payment: dict, claim: Claim) -> int:
    number = payment["id"]
    with psycopg.connect(GIVEN["postgres"], autocommit=True) as connection:
        book = claim.step_transaction("book", connection)
        with suppress(StepMade), book:
            connection.execute("INSERT INTO books VALUES (%s)", (number,))
        pause()
        with claim.transaction(connection) as transaction:
            connection.execute("INSERT INTO paid VALUES (%s)", (number,))
            claim.send(GIVEN["shipping"], {"id": number, "parcel": 1})
            claim.send(GIVEN["shipping"], {"id": number, "parcel": 2})
            transaction.result = number
    return number


def ship(parcel: dict, claim: Claim) -> int:
    name = f"{parcel['id']}.{parcel['parcel']}"
    note("shipping", parcel["id"], parcel["parcel"])
    return claim.transact([{"Update": counting("shipped", name)}], parcel["parcel"])


HANDLERS = {"orders": (place, "dynamodb"), "payments": (pay, "postgresql"), "shipping": (ship, "dynamodb")}
handler, ledger = HANDLERS[SERVICE]
SqsWorker(
    Once(GIVEN[ledger], lease=LEASE),
    GIVEN[SERVICE].removeprefix("sqs:"),
    handler,
    name=SERVICE,
    **({"key": "order.id"} if SERVICE == "orders" else {}),  # the others: the message's own key
    visibility=VISIBILITY,
    backoff=(1.0, 4.0),
    wait=2,
    concurrency=8,
).run()
