"""What a review of the doctor found: settings of real life, and what is to be said of each."""

import pytest

from onceward import Policy
from onceward.aws.doctor.diagnosis import diagnosis
from onceward.aws.doctor.facts import Facts, QueueSettings, Trigger
from onceward.aws.doctor.look import _name
from onceward.stores.dynamodb.inspection import _lagging
from onceward.stores.dynamodb.table import Table

DAY = 86400
ARN = "arn:aws:sqs:eu-west-1:1:orders"
TABLE = Table("dynamodb://ledger", times=frozenset({"lease_until", "created_at", "fence"}))


def facts(queue=None, dead=None, triggers=(), policy=None, **table):
    """A standard queue as the documentation of AWS advises, with what is different."""
    queue = {"visibility": 180, "wait": 20, "receives": 5, "dead_letters": f"{ARN}-dlq", **(queue or {})}
    return Facts(
        policy or Policy(),
        QueueSettings("orders", ARN, **queue),
        None
        if queue["dead_letters"] is None
        else QueueSettings("dlq", f"{ARN}-dlq", **{"retention": 14 * DAY} | (dead or {})),
        triggers,
        ledger=TABLE._replace(**table),
    )


CHARGE = Trigger("charge", timeout=30)
ALONE = {"dead_letters": None, "receives": 0}
REAL = {
    "as AWS advises, with Lambda": (facts(triggers=(CHARGE,)), []),
    "as AWS advises, with a worker": (facts(), []),
    "a queue from the console, with nothing filled in": (
        facts({"visibility": 30, "wait": 0, **ALONE}),
        [("warning", "dead letters"), ("warning", "polling")],
    ),
    "the first function of a tutorial: both timeouts are 30 s": (
        facts({"visibility": 30, **ALONE}, triggers=(CHARGE._replace(partial=False),)),
        [
            ("error", "dead letters"),
            ("error", "partial responses"),
            ("warning", "function timeout"),
        ],
    ),
    "quick functions and few receives: their leases end with the invocation": (
        facts({"visibility": 18, "receives": 5}, triggers=(CHARGE._replace(timeout=3),)),
        [("warning", "lease")],
    ),
    "patience: an hour between receives, a thousand of them": (
        facts({"visibility": 3600, "receives": 1000}, triggers=(CHARGE,)),
        [],
    ),
    "dead letters that are kept no longer than messages": (
        facts(dead={"retention": 4 * DAY}),
        [("warning", "dead-letter retention")],
    ),
    "FIFO, with dead letters for two weeks": (
        facts({"fifo": True}, {"fifo": True}, (CHARGE,)),
        [("warning", "retention")],
    ),
    "two functions with a filter each": (
        facts(triggers=(CHARGE._replace(filtered=True), Trigger("refund", timeout=30, filtered=True))),
        [("error", "filter"), ("warning", "event source mapping")],
    ),
    "one function with a filter": (facts(triggers=(CHARGE._replace(filtered=True),)), [("warning", "filter")]),
    "a filter of a mapping that is off": (
        facts(triggers=(CHARGE._replace(filtered=True, enabled=False),)),
        [("warning", "event source mapping")],
    ),
    "a function that was stopped by its concurrency": (
        facts(triggers=(CHARGE._replace(reserved=0, concurrency=10),)),
        [("error", "concurrency")],
    ),
    "a function that is kept to one at a time": (
        facts(triggers=(CHARGE._replace(reserved=1, concurrency=2),)),
        [("warning", "concurrency")],
    ),
    "a function with the concurrency that its mapping uses": (
        facts(triggers=(CHARGE._replace(reserved=10, concurrency=10),)),
        [],
    ),
    "one attempt, as some do who fear doubles": (facts({"receives": 1}), [("error", "maxReceiveCount")]),
    "a ledger that forgets after Powertools' hour": (
        facts(policy=Policy(retention=3600.0)),
        [("error", "retention")],
    ),
}


@pytest.mark.parametrize(("facts", "found"), REAL.values(), ids=REAL)
def test_settings_of_real_life(facts, found):
    assert [(finding.level, finding.check) for finding in diagnosis(facts) if finding.level != "ok"] == found


def test_what_is_to_be_done_about_a_concurrency_can_be_done():
    (finding,) = [
        finding
        for finding in diagnosis(facts(triggers=(CHARGE._replace(reserved=1, concurrency=2),)))
        if finding.level == "warning"
    ]
    assert finding.mend == "give the mapping a MaximumConcurrency of 2, and the function a reserved concurrency of 2"


@pytest.mark.parametrize(
    "function",
    [
        "charge",
        "charge:live",
        "arn:aws:lambda:eu-west-1:1:function:charge",
        "arn:aws:lambda:eu-west-1:1:function:charge:7",
    ],
)
def test_a_function_is_known_by_each_of_its_names(function):
    assert _name(function) == "charge"


@pytest.mark.parametrize(
    ("consistency", "regions"), [("STRONG", ()), ("EVENTUAL", ("us-east-1",)), (None, ("us-east-1",))]
)
def test_replicas_that_are_strongly_consistent_are_no_danger(consistency, regions):
    described = {"Replicas": [{"RegionName": "us-east-1"}], "MultiRegionConsistency": consistency}
    assert _lagging(described) == regions
