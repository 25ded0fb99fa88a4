"""Events of HTTP requests as AWS sends them: API Gateway, function URLs and load balancers."""

import json

BODY = {"item": "book", "price": 12.5}
KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"


def rest(path="/orders", method="POST", body=BODY, headers=(), **more):
    """A REST API's event, or an HTTP API's with payload format 1.0; the names as they were sent."""
    lines = {"Content-Type": ["application/json"], "Host": ["id.execute-api.us-east-1.amazonaws.com"]}
    for name, value in headers:
        lines.setdefault(name, []).append(value)
    return {
        "path": path,
        "httpMethod": method,
        "headers": {name: held[-1] for name, held in lines.items()},
        "multiValueHeaders": lines,
        "queryStringParameters": {"b": "2", "a": "3"},
        "multiValueQueryStringParameters": {"b": ["2"], "a": ["1", "3"]},
        "requestContext": {
            "httpMethod": method,
            "identity": {"sourceIp": "192.168.0.1"},
            "path": path,
            "stage": "prod",
        },
        "pathParameters": None,
        "body": body if isinstance(body, str | None) else json.dumps(body),
        "isBase64Encoded": False,
        **more,
    }


def http(
    path="/orders", method="POST", body=BODY, headers=(), *, domain="id.execute-api.us-east-1.amazonaws.com", **more
):
    """An HTTP API's event with payload format 2.0: names in lower case, lines joined, cookies apart."""
    joined = {"content-type": "application/json", "host": domain}
    cookies = []
    for name, value in headers:
        if name == "Cookie":
            cookies.append(value)
        else:
            before = joined.get(name.lower())
            joined[name.lower()] = value if before is None else f"{before},{value}"
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "a=1&a=3&b=2",
        "headers": joined,
        "queryStringParameters": {"a": "1,3", "b": "2"},
        "requestContext": {
            "apiId": "api-id",
            "domainName": domain,
            "http": {"method": method, "path": path, "sourceIp": "192.168.0.1"},
            "stage": "$default",
        },
        "isBase64Encoded": False,
        **more,
    }
    if cookies:
        event["cookies"] = cookies
    if body is not None:
        event["body"] = body if isinstance(body, str) else json.dumps(body)
    return event


def url(*args, **more):
    return http(*args, domain="abc123.lambda-url.us-east-1.on.aws", **more)


def balancer(path="/orders", method="POST", body=BODY, headers=(), **more):
    return {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-central-1:1:targetgroup/a/8"}},
        "httpMethod": method,
        "path": path,
        "queryStringParameters": {"b": "2", "a": "3"},
        "headers": {"content-type": "application/json", **{name.lower(): value for name, value in headers}},
        "body": body if isinstance(body, str) else json.dumps(body),
        "isBase64Encoded": False,
        **more,
    }


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
