"""Constructors refuse an argument of another type, and say what to give."""

import pytest

from onceward import Once
from onceward.aws import Queue
from onceward.observe.otel_metrics import observe_ledger
from onceward.observe.prometheus import PrometheusLedger
from onceward.outbox import HttpTarget, Relay, register
from onceward.pipelines import load
from onceward.proxy import Proxy
from onceward.stores.dynamodb import open_table
from onceward.testing.faults import Faults
from onceward.web import fastapi, flask
from onceward.web.webhooks import GitHub, Shopify, Slack, Sns, StandardWebhooks, Stripe, meta_handshake
from tables import each

MADE = {
    "Once": Once,
    "Queue": Queue,
    "HttpTarget": HttpTarget,
    "Relay": Relay,
    "register": lambda value: register(value, HttpTarget),
    "load": load,
    "Proxy": lambda value: Proxy(value, Once("memory:"), name="n"),
    "answer of FastAPI": fastapi.answer,
    "answer of Flask": flask.answer,
    "meta_handshake": meta_handshake,
    "open_table": open_table,
    "PrometheusLedger": PrometheusLedger,
    "observe_ledger": observe_ledger,
    "Faults": lambda value: Faults(value, lambda ask: None),
    **{made.__name__: made for made in (GitHub, Shopify, Slack, Sns, StandardWebhooks, Stripe)},
}


@each("value", [None, 7, ["a"], b"bytes", object()])
@each("name", MADE)
def test_a_value_of_another_type_is_refused_with_what_to_give(name, value):
    with pytest.raises((TypeError, ValueError), match=r"give|a secret is missing") as refused:
        MADE[name](value)
    assert "bytes'" not in str(refused.value)  # the value can be a secret
