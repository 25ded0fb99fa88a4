"""Wires through a boto3 client that the user passes, with its settings, credentials and retries."""

import asyncio
from inspect import iscoroutinefunction
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError

from onceward.core import worker
from onceward.core.clock import Clock
from onceward.errors import StoreError
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.http_calls import read_date
from onceward.wire.wires import Wires

_PASSING: Final = (HTTPClientError, BotoConnectionError, IncompleteReadError, OSError)


def through(client: Any, clock: Clock) -> Wires:
    """Return wires through a client. It serves coroutines in threads.

    Raises:
        TypeError: it is not a boto3 client for DynamoDB.
    """
    meta = getattr(client, "meta", None)  # a resource's has a client, which rewrites attribute values
    service = getattr(getattr(meta, "service_model", None), "service_name", None)
    if service != "dynamodb" or hasattr(meta, "client") or iscoroutinefunction(client.close):
        raise TypeError(f'client={client!r} is not a client for dynamodb: pass boto3.client("dynamodb")')
    wire = SdkWire(client, clock)
    return Wires(lambda: wire, lambda: _Threads(wire))


class SdkWire:
    """Carries calls through a boto3 client, which signs by its own clock and gets its own credentials."""

    def __init__(self, client: Any, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._process = worker.generation
        self._methods = {api: getattr(client, name) for name, api in client.meta.method_to_api_mapping.items()}

    def send(self, call: Any, at: float) -> ServiceAnswer:
        request: Call = call
        if self._process != worker.generation:  # the parent still uses its connections; the client opens new ones
            self._client.close()
            self._process = worker.generation
        sent, details = self._clock(), {}
        try:
            response = self._methods[request.action](**request.body)
        except ClientError as error:
            response = error.response
            details = {"__type": response["Error"].get("Code", ""), "message": response["Error"].get("Message", "")}
        except (BotoCoreError, OSError) as error:
            raise StoreError(
                f"{request.action} through the given client: {error}", transient=isinstance(error, _PASSING)
            ) from error
        about = response["ResponseMetadata"]
        headers = about.get("HTTPHeaders", {})
        date = headers.get("date") if "x-amzn-requestid" in headers else None  # a proxy's clock is not the service's
        body = {name: value for name, value in response.items() if name not in {"ResponseMetadata", "Error"}} | details
        read = None if date is None else read_date(date.lower().encode())
        return ServiceAnswer(about["HTTPStatusCode"], body, read, sent, self._clock())

    def close(self) -> None:
        """Leave the client open: it is its owner's."""


class _Threads:
    """Carries calls for coroutines."""

    def __init__(self, wire: SdkWire) -> None:
        self._wire = wire
        self.close = wire.close

    async def send(self, call: Any, at: float) -> ServiceAnswer:
        return await asyncio.to_thread(self._wire.send, call, at)
