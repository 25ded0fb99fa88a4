"""HTTP requests as Lambda gets them, and responses as its callers expect them. No I/O.

The shapes are those of API Gateway's REST APIs and of HTTP APIs with payload format 1.0; of HTTP APIs with payload format 2.0 (API
Gateway Developer Guide, "Create AWS Lambda proxy integrations for HTTP APIs"); of function URLs (Lambda Developer Guide,
"Invoking Lambda function URLs"); and of load balancers (User Guide for Application Load Balancers, "Use Lambda functions as
targets").
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from http import HTTPStatus
from json import dumps
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlencode

from onceward.aws.events.records import MalformedEvent, at, text_at, unfit
from onceward.http.answer import Answer
from onceward.http.request import Request

Event = dict[str, object]


class Shape(NamedTuple):
    """How one kind of caller wants its responses."""

    infers: bool = False  # whether a response can be any JSON, which is then the body of a 200
    quotes: bool = False  # whether a str as such a body becomes JSON, in quotes
    lines: str = "none"  # whether ``multiValueHeaders`` holds the headers: "all" of them, "repeated" ones, or "none"
    described: bool = False  # whether it wants a status description


REST: Final = Shape(lines="repeated")
HTTP: Final = Shape(infers=True)
URL: Final = Shape(infers=True, quotes=True)
BALANCER: Final = Shape(described=True)
BALANCER_LINES: Final = Shape(described=True, lines="all")  # "multi-value headers" are switched on for the target group


def read(event: object) -> tuple[Shape, Request, bytes]:
    """Return the shape of an event's response, and the request with its body.

    Raises:
        MalformedEvent: it is not an HTTP request, or not of a known kind.
    """
    if isinstance(event, dict):
        if at(event, "version") == "2.0" and isinstance(at(event, "requestContext", "http"), dict):
            return _second(event)
        if isinstance(at(event, "httpMethod"), str):
            return _first(event)
    raise unfit(event, "HTTP requests of API Gateway, a function URL or a load balancer")


def answer_of(shape: Shape, response: object) -> Answer | None:
    """Return what the client gets for a function's response; None if the caller cannot read it and answers with an error."""
    if not (isinstance(response, dict) and "statusCode" in response):
        return _infer(shape, response) if shape.infers else None
    status, body = response["statusCode"], response.get("body")
    try:
        status = int(status) if isinstance(status, str) else status
        if not isinstance(status, int) or not 100 <= status <= 599:
            return None
        status = int(status)  # it can be an HTTPStatus
        data = a2b_base64(body or "") if response.get("isBase64Encoded") is True else (body or "").encode()
        return Answer(status, list(_response_headers(response)), data)
    except (ValueError, TypeError, AttributeError):
        return None


def response_of(shape: Shape, answer: Answer) -> Event:
    """Return an answer in the form that the caller expects."""
    response: Event = {"statusCode": answer.status}
    if shape.described:
        response["statusDescription"] = f"{answer.status} {_phrase(answer.status)}".strip()
    lines: dict[str, list[str]] = {}
    for name, value in answer.headers:
        lines.setdefault(name, []).append(value)
    if shape.lines == "all":
        response["multiValueHeaders"] = lines
    else:
        once = shape.lines == "none"
        response["headers"] = {name: ", ".join(held) for name, held in lines.items() if once or len(held) == 1}
        if not once and (repeated := {name: held for name, held in lines.items() if len(held) > 1}):
            response["multiValueHeaders"] = repeated
    try:
        response["body"], response["isBase64Encoded"] = answer.body.decode(), False
    except UnicodeDecodeError:
        response["body"], response["isBase64Encoded"] = b2a_base64(answer.body, newline=False).decode(), True
    return response


# --- requests -------------------------------------------------------------------------------------------------------


def _first(event: Event) -> tuple[Shape, Request, bytes]:
    """Read payload format 1.0, and the similar events of load balancers."""
    shape = REST
    if isinstance(at(event, "requestContext", "elb"), dict):
        shape = BALANCER_LINES if isinstance(event.get("multiValueHeaders"), dict) else BALANCER
    # API Gateway fills both, a load balancer one of them
    headers = _pairs(event, "multiValueHeaders") or _pairs(event, "headers")
    query = _pairs(event, "multiValueQueryStringParameters") or _pairs(event, "queryStringParameters")
    request = Request(
        _text(event, "httpMethod"),
        _unquote(_text(event, "path")),
        urlencode(sorted(query, key=lambda pair: pair[0])),  # the values of one name stay in their order
        [(name.lower(), value) for name, value in headers],
        _identity(event),
        event,
    )
    return shape, request, _body(event)


def _second(event: Event) -> tuple[Shape, Request, bytes]:
    """Read payload format 2.0. It joins the lines of a header with commas, which no key may contain."""
    path = _text(event, "rawPath")
    stage = at(event, "requestContext", "stage")
    if isinstance(stage, str) and path.startswith(f"/{stage}/"):  # a stage that is not $default stands before the path
        path = path[len(stage) + 1 :]
    headers = [(name.lower(), value) for name, value in _pairs(event, "headers")]
    cookies = event.get("cookies")
    if isinstance(cookies, list):
        headers.append(("cookie", "; ".join(map(str, cookies))))
    domain = at(event, "requestContext", "domainName")
    request = Request(
        _text(event, "requestContext", "http", "method"),
        _unquote(path),
        _text(event, "rawQueryString") if event.get("rawQueryString") else "",
        headers,
        _identity(event),
        event,
    )
    return URL if isinstance(domain, str) and ".lambda-url." in domain else HTTP, request, _body(event)


def _unquote(path: str) -> str:
    """Return a decoded path, as in routes. Load balancers and function URLs pass it on as it was sent."""
    return unquote(path, errors="surrogateescape") if "%" in path else path


def _identity(event: Event) -> str | None:
    """Return the caller that API Gateway or the function URL authenticated: an IAM principal, or a token's issuer and subject."""
    context = at(event, "requestContext")
    iam, identity = at(context, "authorizer", "iam"), at(context, "identity")
    # All users of a Cognito identity pool can share one principal, with one role and one session.
    for arn, user in (
        (text_at(iam, "userArn"), at(iam, "cognitoIdentity", "identityId")),
        (text_at(identity, "userArn"), at(identity, "cognitoIdentityId")),
    ):
        if arn is not None:
            return f"{arn} {user or ''}"
    for claims in (at(context, "authorizer", "jwt", "claims"), at(context, "authorizer", "claims")):
        if (subject := text_at(claims, "sub")) is not None:
            return f"{at(claims, 'iss') or ''} {subject}"
    return None


def _body(event: Event) -> bytes:
    body = event.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise MalformedEvent(f"the event's body is a {type(body).__name__}, not text; nothing has run")
    if event.get("isBase64Encoded") is not True:
        return body.encode("utf-8", "surrogatepass")
    try:
        return a2b_base64(body, strict_mode=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise MalformedEvent(
            f"the event says that its body is base64, but it is not: {error}; nothing has run"
        ) from error


def _pairs(event: Event, field: str) -> list[tuple[str, str]]:
    """Return the names and values of a field such as ``headers``, one pair for each value."""
    members = event.get(field)
    if members is None:
        return []
    if isinstance(members, dict):
        pairs = [
            (name, value) for name, held in members.items() for value in (held if isinstance(held, list) else [held])
        ]
        if all(isinstance(part, str) for pair in pairs for part in pair):
            return pairs
    raise MalformedEvent(f"the event's {field} are not names with text values; nothing has run")


def _text(event: Event, *path: str) -> str:
    text = at(event, *path)
    if not isinstance(text, str):
        raise MalformedEvent(f"the event has no {'.'.join(path)}, or it is not text; nothing has run")
    return text


# --- responses ------------------------------------------------------------------------------------------------------


def _infer(shape: Shape, response: object) -> Answer | None:
    """Return the answer for a response without a status: a 200 with JSON."""
    try:
        text = response if isinstance(response, str) and not shape.quotes else dumps(response, ensure_ascii=False)
        return Answer(200, [("content-type", "application/json")], text.encode())
    except (ValueError, TypeError, RecursionError):
        return None


def _response_headers(response: dict[object, object]) -> Iterator[tuple[str, str]]:
    seen = set()
    for field in ("multiValueHeaders", "headers"):
        held: Any = response.get(field) or {}
        for name, values in held.items():  # the caller handles what is not a dict
            for value in values if isinstance(values, list) else [values]:
                pair = (str(name), str(value).lower() if isinstance(value, bool) else str(value))
                if pair not in seen:  # in both fields it counts once
                    seen.add(pair)
                    yield pair


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
