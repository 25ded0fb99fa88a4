"""A function behind API Gateway with an effect to count."""

import json
import time

import pytest

from web.api_events import balancer, balancer_lines, http, rest, url
from web.calls import on_api

SOURCES = [rest, http, url, balancer, balancer_lines]
source = pytest.mark.parametrize("source", SOURCES)


def header(response, name):
    """Return the values of a header of a response, whichever field holds it."""
    found = []
    for field in ("headers", "multiValueHeaders"):
        for held, value in response.get(field, {}).items():
            if held.lower() == name:
                found += value if isinstance(value, list) else [value]
    return found


class Context:
    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self):
        return max(0, int((self._end - time.monotonic()) * 1000))


class Shop:
    def __init__(self, *responses):
        self.effects = []
        self._responses = list(responses)

    def __call__(self, event, context=None):
        self.effects.append(event)
        if self._responses:
            response = self._responses.pop(0)
            if isinstance(response, Exception):
                raise response
            return response
        return {
            "statusCode": 201,
            "headers": {"Content-Type": "application/json", "Location": f"/orders/{len(self.effects)}"},
            "body": json.dumps({"id": len(self.effects)}),
            "isBase64Encoded": False,
        }


def served(once, shop, rules=None, **options):
    return on_api(once, rules, name="shop", **options)(shop)


def records(once):
    return [record for record, _ in once.ledger.records()]
