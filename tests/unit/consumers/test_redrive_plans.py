"""What a redrive does about a dead letter, because of its record and of what it is told."""

import json

import pytest

from onceward import Once
from onceward.aws.dead_letters.letters import Letters
from onceward.aws.sqs.message import Message
from onceward.consumers.redriving import planned
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.kafka import KafkaRedrive
from onceward.rabbitmq import RabbitRedrive
from onceward.testing.bench import claim_of
from tables import each


def message(body, **attributes):
    text = body if isinstance(body, str) else json.dumps(body)
    return Message("id", "receipt", text, {}, attributes)


def held(status, attempts=3, lease_until=0.0):
    made = claim_of("k", "o", status=status, attempts=attempts, error="e", keep=None).at(1e-6)
    return made._replace(beat=1, lease_until=lease_until)


@each(
    ("body", "where", "meant"),
    [
        ({"a": 0}, "body.a", True),
        ([1], "body", True),
        ({"a": ""}, "body.a", False),
        ({"a": 1}, "starts_with(body.a, 'x')", False),
        ("x", "body.a", False),
    ],
)
def test_where_is_true_in_the_sense_of_jmespath(body, where, meant):
    assert Letters("n", None, where).matches(message(body)) is meant


@each(
    ("record", "completed", "begun", "step"),
    [
        (None, "keep", False, "move"),
        (held(PARKED), "keep", False, "unpark"),
        (held(RELEASED), "keep", False, "reset"),
        (held(RELEASED, attempts=0), "keep", False, "move"),
        (held(IN_PROGRESS, lease_until=50.0), "drop", False, "reset"),
        (held(IN_PROGRESS, lease_until=101.0), "drop", True, "wait"),
        (held(COMPLETED), "keep", False, "keep"),
        (held(COMPLETED), "drop", False, "drop"),
        (held(COMPLETED), "rerun", False, "rerun"),
        (held(COMPLETED), "keep", True, "finish"),
        (held(COMPLETED)._replace(expires_at=99.0), "keep", True, "move"),
    ],
)
def test_what_is_done_about_a_message(record, completed, begun, step):
    assert planned(record, 100.0, completed, "keep", has_begun=begun).step == step


@each("redrive", [KafkaRedrive, RabbitRedrive])
@each("options", [{"limit": 0}, {"limit": -1}, {"completed": "rerun"}, {"in_doubt": "drop"}])
def test_wrong_options_are_refused(redrive, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        redrive(Once("memory:"), "orders", **options)
