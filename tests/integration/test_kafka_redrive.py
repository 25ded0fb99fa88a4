"""Dead letters of Kafka go back after the fix: which move, which stay, and what a killed run leaves."""

import json
from contextlib import closing

from observing import note_outcomes
from onceward.core.record import COMPLETED, PARKED
from onceward.kafka import KafkaRedrive, KafkaWorker


def order(number, **more):
    return json.dumps({"id": number, **more}).encode()


def worked(once, kafka, topic, handler, **options):
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    options = {"key": "order.id", "group": "shop", "max_attempts": 1, **options}
    KafkaWorker(once, topic, handler, servers=kafka.servers, **options).run(until_empty=True)
    return told


def failing(order: dict):
    raise ZeroDivisionError


def moved(once, kafka, topic, **options):
    fates = list(KafkaRedrive(once, topic, servers=kafka.servers, **options).run())
    return [(fate.outcome, fate.key) for fate in fates]


def test_a_parked_record_is_handled_after_the_redrive(once, kafka, topic):
    kafka.send(topic, order(1), trace="t")
    assert worked(once, kafka, topic, failing, backoff=(0, 0)) == ["parked"]
    assert once.ledger.show("shop:1")[0].status == PARKED
    assert moved(once, kafka, topic, dry_run=True) == [("moved", "shop:1")]
    assert once.ledger.show("shop:1")[0].status == PARKED
    assert moved(once, kafka, topic) == [("moved", "shop:1")]
    assert moved(once, kafka, topic) == []
    seen = []
    assert worked(once, kafka, topic, lambda order: seen.append(order["id"])) == ["done"]
    assert seen == [1]
    assert once.ledger.show("shop:1")[0].status == COMPLETED


def test_another_input_stays_behind_the_letters_that_were_looked_at(once, kafka, topic):
    kafka.send(topic, order(1, sum=5), order(1, sum=7))

    def handler(order: dict):
        pass

    assert sorted(worked(once, kafka, topic, handler, fingerprint="order", concurrency=1)) == ["done", "mismatch"]
    assert moved(once, kafka, topic) == [("refused", "shop:1")]
    assert moved(once, kafka, topic, completed="drop") == [("refused", "shop:1")], "its input was never handled"
    assert len(kafka.read(f"{topic}.onceward-dead")) == 3


def test_letters_of_another_group_stay(once, kafka, topic):
    kafka.send(topic, b"torn")
    assert worked(once, kafka, topic, failing) == ["malformed"]
    assert moved(once, kafka, topic, group="another") == []
    assert moved(once, kafka, topic, group="shop") == [("moved", None)]


def test_a_run_that_was_cut_off_begins_again_and_the_effect_is_made_once(once, kafka, topic):
    kafka.send(topic, order(1), order(2))
    worked(once, kafka, topic, failing, backoff=(0, 0))
    with closing(KafkaRedrive(once, topic, servers=kafka.servers).run()) as fates:
        assert next(fates).outcome == "moved"  # and its offset is not committed
    assert [outcome for outcome, _ in moved(once, kafka, topic)] == ["moved", "moved"]
    seen = []
    told = worked(once, kafka, topic, lambda order: seen.append(order["id"]))
    assert sorted(seen) == [1, 2]
    assert sorted(told) == ["done", "done", "replayed"]
