"""Events of HTTP requests as AWS sends them: API Gateway, function URLs and load balancers."""

import json
import time

import pytest

from web.calls import on_api

BODY = {"item": "book", "price": 12.5}
KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
DOMAIN = "id.execute-api.us-east-1.amazonaws.com"


def rest(path="/orders", method="POST", body=BODY, headers=(), **more):
    """A REST API's event, or an HTTP API's with payload format 1.0; the names as they were sent."""
    lines = {"Content-Type": ["application/json"], "Host": [DOMAIN]}
    for name, value in headers:
        lines.setdefault(name, []).append(value)
    event = {"path": path, "httpMethod": method}
    event["requestContext"] = {**event, "identity": {"sourceIp": "192.168.0.1"}, "stage": "prod"}
    event |= {"headers": {name: held[-1] for name, held in lines.items()}, "multiValueHeaders": lines}
    event |= {"queryStringParameters": {"b": "2", "a": "3"}, "pathParameters": None, "isBase64Encoded": False}
    event["multiValueQueryStringParameters"] = {"b": ["2"], "a": ["1", "3"]}
    return event | {"body": body if isinstance(body, str | None) else json.dumps(body), **more}


def http(path="/orders", method="POST", body=BODY, headers=(), *, domain=DOMAIN, **more):
    """An HTTP API's event with payload format 2.0: names in lower case, lines joined, cookies apart."""
    joined = {"content-type": "application/json", "host": domain}
    cookies = []
    for name, value in headers:
        if name == "Cookie":
            cookies.append(value)
        else:
            before = joined.get(name.lower())
            joined[name.lower()] = value if before is None else f"{before},{value}"
    request = {"method": method, "path": path, "sourceIp": "192.168.0.1"}
    context = {"apiId": "api-id", "domainName": domain, "http": request, "stage": "$default"}
    event = {"version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "a=1&a=3&b=2"}
    event |= {"queryStringParameters": {"a": "1,3", "b": "2"}, "headers": joined, "requestContext": context}
    event |= {"isBase64Encoded": False, **more}
    if cookies:
        event["cookies"] = cookies
    if body is not None:
        event["body"] = body if isinstance(body, str) else json.dumps(body)
    return event


def url(*args, **more):
    return http(*args, domain="abc123.lambda-url.us-east-1.on.aws", **more)


def balancer(path="/orders", method="POST", body=BODY, headers=(), **more):
    context = {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-central-1:1:targetgroup/a/8"}}
    lower = {"content-type": "application/json", **{name.lower(): value for name, value in headers}}
    text = body if isinstance(body, str) else json.dumps(body)
    event = {"requestContext": context, "httpMethod": method, "path": path, "headers": lower, "body": text}
    return event | {"queryStringParameters": {"b": "2", "a": "3"}, "isBase64Encoded": False, **more}


def balancer_lines(*args, headers=(), **more):
    """A load balancer's event with multi-value headers switched on."""
    event = balancer(*args, **more)
    lines = {name: [value] for name, value in event.pop("headers").items()}
    for name, value in headers:
        lines.setdefault(name.lower(), []).append(value)
    event.pop("queryStringParameters")
    return event | {"multiValueHeaders": lines, "multiValueQueryStringParameters": {"b": ["2"], "a": ["1", "3"]}}


def keyed(source, *headers, key=KEY, **more):
    return source(headers=[("Idempotency-Key", key), *headers], **more)


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
        headers = {"Content-Type": "application/json", "Location": f"/orders/{len(self.effects)}"}
        body = json.dumps({"id": len(self.effects)})
        return {"statusCode": 201, "headers": headers, "body": body, "isBase64Encoded": False}


def served(once, shop, rules=None, **options):
    return on_api(once, rules, name="shop", **options)(shop)
