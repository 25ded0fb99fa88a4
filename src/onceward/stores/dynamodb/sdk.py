"""Wires through a client of boto3 or aiobotocore that the user passes, with its settings, credentials and retries."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import closing
from inspect import iscoroutinefunction
from typing import Any, Final, NoReturn, cast

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError

from onceward.core.clock import Clock, boottime
from onceward.errors import StoreError
from onceward.wire.calls import AsyncWire, Call, ObjectCall, ServiceAnswer, Wire
from onceward.wire.connections import LIMIT
from onceward.wire.http_calls import read_date

_PASSING: Final = (HTTPClientError, BotoConnectionError, IncompleteReadError, OSError)
_OWN: Final = frozenset({"x-amzn-requestid", "x-amz-request-id"})  # headers of Amazon's own answers
_PATIENCE: Final = 10.0  # seconds that a blocking call waits for the answer that an event loop gets it
_WANTED: Final = 'boto3.client("dynamodb"), or what `async with session.create_client("dynamodb")` of aiobotocore gives'


def through(
    client: object, clock: Clock = boottime, objects: object = None
) -> tuple[Callable[[], Wire], Callable[[], AsyncWire]]:
    """Return the functions that open the two wires through an SDK's client.

    A boto3 client serves coroutines in threads. An aiobotocore client serves the event loop it was made in. Blocking calls,
    such as the heartbeat's, get their answer from that loop, from another thread. So if a handler blocks the loop for
    longer than its lease, it is not renewed; with a boto3 client, or without a client, it is.

    ``objects`` is a client of the same SDK for S3, if large results go to a bucket.

    Raises:
        TypeError: it is not a client for DynamoDB. The sync wire raises it for an aiobotocore client whose event loop is
            unknown, not running, or the one that would be blocked.
    """
    _check(client, "dynamodb", _WANTED)
    if objects is not None:
        _check(objects, "s3", _WANTED.replace("dynamodb", "s3"))
        if _is_async(objects) != _is_async(client):
            raise TypeError("the clients for DynamoDB and for S3 must be both of boto3 or both of aiobotocore")
    clients = _Clients(client, objects, clock)
    blocking = LoopSdkWire if clients.asynchronous else SdkWire
    return (lambda: blocking(clients)), (lambda: AsyncSdkWire(clients))


class _ClientWire:
    """What the wires through a client have in common."""

    def __init__(self, clients: "_Clients") -> None:
        self._clients = clients

    def close(self) -> None:
        """Leave the client open: it is its owner's."""


class SdkWire(_ClientWire):
    """Carries calls through a boto3 client, which signs by its own clock and gets its own credentials."""

    def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        method, arguments = self._clients.method(call)
        sent = self._clients.clock()
        try:
            response = method(**arguments)
            content = None
            if _has_object(call):
                with closing(response["Body"]) as stream:
                    _check_size(call, response)
                    content = stream.read()
        except (BotoCoreError, ClientError, OSError) as error:
            return _failed(call, error, sent, self._clients.clock())
        return _answer(response, content, sent, self._clients.clock())


class AsyncSdkWire(_ClientWire):
    """Carries calls for coroutines: through an aiobotocore client, or a boto3 client in threads."""

    async def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        if not self._clients.asynchronous:
            return await asyncio.to_thread(SdkWire(self._clients).send, call, at)
        self._clients.loop = asyncio.get_running_loop()
        method, arguments = self._clients.method(call)
        sent = self._clients.clock()
        try:
            response = await cast("Awaitable[Any]", method(**arguments))
            content = None
            if _has_object(call):
                async with response["Body"] as stream:
                    _check_size(call, response)
                    content = await stream.read()
        except (BotoCoreError, ClientError, OSError) as error:
            return _failed(call, error, sent, self._clients.clock())
        return _answer(response, content, sent, self._clients.clock())


class LoopSdkWire(_ClientWire):
    """Carries blocking calls through an aiobotocore client: on the event loop in which coroutines have used it."""

    def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Send one call from any thread but the loop's own."""
        loop = self._clients.loop
        if loop is None or not loop.is_running():
            raise TypeError(
                "this client is asynchronous, and the event loop that used it does not run. For handlers that are "
                'not asynchronous, pass boto3.client("dynamodb")'
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise TypeError(
                "this client is asynchronous, and its event loop would wait for itself. In a coroutine, use the asynchronous "
                'form of this call, or pass boto3.client("dynamodb")'
            )
        sending = AsyncSdkWire(self._clients).send(call, at)
        try:
            answer = asyncio.run_coroutine_threadsafe(sending, loop)
        except RuntimeError as error:  # the loop was closed just now
            sending.close()
            _fail(call, str(error), error)
        try:
            return answer.result(_PATIENCE)
        except (TimeoutError, CancelledError) as error:
            if not loop.is_closed():
                answer.cancel()  # otherwise calls would pile up that nothing waits for
            _fail(call, f"its event loop gave no answer within {_PATIENCE:g} s", error, transient=True)


class _Clients:
    """What was passed, and how it is called."""

    def __init__(self, client: Any, objects: Any, clock: Clock) -> None:
        self.asynchronous = _is_async(client)
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None  # that an asynchronous client was last used in
        self._methods = {api: getattr(client, name) for name, api in client.meta.method_to_api_mapping.items()}
        self._objects = objects

    def method(self, call: Call | ObjectCall) -> tuple[Callable[..., Any], Mapping[str, object]]:
        """Return the client's method for a call, and its arguments."""
        if isinstance(call, Call):
            return self._methods[call.action], call.body
        if self._objects is None:
            raise StoreError("results in S3 with client= need a client for S3, too")
        where = {"Bucket": call.bucket, "Key": call.key}
        if call.method == "GET":
            return self._objects.get_object, where
        return self._objects.put_object, {**where, "Body": call.content or b""}


def _check(client: Any, service: str, wanted: str) -> None:
    meta = getattr(client, "meta", None)
    if hasattr(meta, "client"):
        # Not its meta.client either: that one rewrites attribute values as the resource's methods take them.
        raise TypeError(f"client={client!r} is a resource: pass {wanted}")
    if getattr(getattr(meta, "service_model", None), "service_name", None) != service:
        raise TypeError(f"client={client!r} is not a client for {service}: pass {wanted}")
    if not _is_async(client) and _rewrites(client):
        raise TypeError(f"client={client!r} belongs to a resource and rewrites attribute values: pass {wanted}")


def _is_async(client: Any) -> bool:
    return iscoroutinefunction(client.close)


def _rewrites(client: Any) -> bool:
    """Return whether a client is a resource's ``meta.client``, by its parameter handlers."""
    model = client.meta.service_model.operation_model(client.meta.service_model.operation_names[0])
    event = f"provide-client-params.{client.meta.service_model.service_name}.{model.name}"
    handled = client.meta.events.emit(event, params={}, model=model, context={})
    return any(getattr(handler, "__module__", "") == "boto3.dynamodb.transform" for handler, _ in handled)


def _has_object(call: Call | ObjectCall) -> bool:
    return isinstance(call, ObjectCall) and call.method == "GET"


def _check_size(call: Call | ObjectCall, response: Mapping[str, Any]) -> None:
    if response["ContentLength"] > LIMIT:
        _fail(call, f"the object has {response['ContentLength']} bytes, and the limit is {LIMIT}")


def _answer(response: Mapping[str, Any], content: bytes | None, sent: float, received: float) -> ServiceAnswer:
    about = response["ResponseMetadata"]
    body: object = content
    if content is None:
        body = {name: value for name, value in response.items() if name != "ResponseMetadata"}
    return ServiceAnswer(about["HTTPStatusCode"], body, _date(about), sent, received)


def _failed(call: Call | ObjectCall, error: Exception, sent: float, received: float) -> ServiceAnswer:
    """Return an SDK's error as an answer. If there was no answer, raise it as the store's error."""
    if not isinstance(error, ClientError):
        # An invalid certificate is a ConnectionError like any other, but a retry does not help.
        _fail(call, str(error), error, transient=isinstance(error, _PASSING) and "CERTIFICATE_VERIFY" not in str(error))
    response = error.response
    about, told = response["ResponseMetadata"], response["Error"]
    rest = {name: value for name, value in response.items() if name not in {"ResponseMetadata", "Error"}}
    body = {**rest, "__type": told.get("Code", ""), "message": told.get("Message", "")}
    return ServiceAnswer(about["HTTPStatusCode"], body, _date(about), sent, received)


def _fail(call: Call | ObjectCall, reason: str, cause: Exception | None = None, *, transient: bool = False) -> NoReturn:
    name = call.action if isinstance(call, Call) else f"{call.method} of an object"
    raise StoreError(f"{name} through the given client: {reason}", transient=transient) from cause


def _date(about: Mapping[str, Any]) -> float | None:
    headers = about.get("HTTPHeaders", {})
    own = _OWN & headers.keys() or "application/x-amz-json-1." in headers.get("content-type", "")
    date = headers.get("date") if own else None  # a proxy's clock is not the service's
    return None if date is None else read_date(date.lower().encode())
