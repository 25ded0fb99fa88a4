"""What functions of Lambda are given of an event."""

from __future__ import annotations

from onceward.aws import Delivery
from queues import lambda_events as events


def keys(once):
    return sorted(once.store.records)


def given(once, wrapper, event, **options):
    """Return what a function without annotations is given of ``event``, and the deliveries."""
    seen = []

    @wrapper(once, **options)
    def handle(payload, delivery: Delivery):
        seen.append((payload, delivery))

    handle(event, events.Context())
    return [payload for payload, _ in seen], [delivery for _, delivery in seen]


def refusing(payload):
    raise AssertionError("it ran")
