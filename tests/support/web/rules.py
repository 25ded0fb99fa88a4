"""Requests that are asked of the rules of the Idempotency-Key, and what the answers say."""

import json

from onceward.http.route import PendingRequest
from onceward.web import Request

UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"
JSON = ("content-type", "application/json")


def post(path="/orders", *headers, query="", method="POST", **more):
    return Request(method, path, query, headers, **more)


def keyed(key=UUID, *headers, path="/orders", **more):
    return post(path, ("idempotency-key", key), *headers, **more)


def asked(rules, request, body=b""):
    pending = rules.begin(request)
    return rules.ask(pending, body) if isinstance(pending, PendingRequest) else pending


def fields(answer):
    return {name.lower(): value for name, value in answer.headers}


def problem(answer):
    headers = fields(answer)
    assert headers["content-type"] == "application/problem+json"
    document = json.loads(answer.body)
    assert document["status"] == answer.status
    assert document["type"].endswith(f"#{kind_of(answer)}")
    return document


def kind_of(answer):
    return json.loads(answer.body)["type"].partition("#")[2]


GZIP = ("content-encoding", "gzip")
