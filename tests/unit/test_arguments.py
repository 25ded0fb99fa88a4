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

CONSTRUCTORS = [
    Once,
    Queue,
    HttpTarget,
    Relay,
    lambda value: register(value, HttpTarget),
    load,
    lambda value: Proxy(value, Once("memory:"), name="n"),
    fastapi.answer,
    flask.answer,
    meta_handshake,
    open_table,
    PrometheusLedger,
    observe_ledger,
    lambda value: Faults(value, lambda ask: None),
    *(GitHub, Shopify, Slack, Sns, StandardWebhooks, Stripe),
]


@each("value", [None, 7, ["a"], b"bytes"])
@each("make", CONSTRUCTORS)
def test_a_value_of_another_type_is_refused_with_what_to_give(make, value):
    with pytest.raises((TypeError, ValueError), match=r"give|a secret is missing") as refused:
        make(value)
    assert "bytes'" not in str(refused.value)  # the value can be a secret
