"""onceward and its peers, each guarding the same handler as its own documentation says, on tables of their own.

A handler takes ``order``, whose ``id`` is the key. Nobody remembers anything in the process: each call asks the server.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import quote

import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore.config import Config
from botocore.exceptions import ClientError
from idemkit import DynamoBackend, MethodConfig, idempotent, idempotent_sync

from onceward import Once

REGION = "eu-west-1"
CONNECTIONS = 64
TABLES = {"onceward": "key", "boto3": "key", "powertools": "id", "idemkit": "effective_key"}  # and their key attributes
Order = dict[str, str]


class Boom(Exception):
    """What the failing handler raises."""


class Peer(NamedTuple):
    """A guarded handler: called, awaited, and one that fails."""

    call: Callable[[Order], object]
    await_: Callable[[Order], Awaitable[object]]
    fail: Callable[[Order], object]
    close: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


def boto3_client(url: str) -> object:
    return boto3.client(
        "dynamodb", endpoint_url=url, region_name=REGION, config=Config(max_pool_connections=CONNECTIONS)
    )


def onceward(url: str, options: str = "") -> Peer:
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}{options}")

    @once(key="order.id")
    def handle(order: Order) -> dict[str, bool]:
        return {"ok": True}

    @once(key="order.id")
    async def handle_async(order: Order) -> dict[str, bool]:
        return {"ok": True}

    @once(key="order.id")
    def fail(order: Order) -> None:
        raise Boom

    return Peer(handle, handle_async, fail)


def powertools(url: str, threads: ThreadPoolExecutor) -> Peer:
    """Powertools has no async, so awaiting it is waiting for a thread."""

    def guarded(function: Callable[..., object]) -> Callable[..., object]:
        return idempotent_function(
            function,
            data_keyword_argument="order",
            persistence_store=DynamoDBPersistenceLayer("powertools", boto3_client=boto3_client(url)),
            config=IdempotencyConfig(event_key_jmespath="id", lambda_context=Context()),
        )

    def handle(order: Order) -> dict[str, bool]:
        return {"ok": True}

    def fail(order: Order) -> None:
        raise Boom

    handle, fail = guarded(handle), guarded(fail)

    def handle_in_thread(order: Order) -> Awaitable[object]:
        return asyncio.get_running_loop().run_in_executor(threads, lambda: handle(order=order))

    return Peer(lambda order: handle(order=order), handle_in_thread, lambda order: fail(order=order))


class Context:
    """What Lambda passes to a handler, as far as Powertools looks at it."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the time until Lambda would stop the handler."""
        return 60_000


def idemkit(url: str) -> Peer:
    def backend() -> DynamoBackend:  # one belongs to one event loop
        config = Config(
            connect_timeout=5,
            read_timeout=10,
            retries={"max_attempts": 3, "mode": "standard"},
            max_pool_connections=CONNECTIONS,
        )  # its own settings, and as many connections as the others have
        return DynamoBackend(table="idemkit", endpoint_url=url, region_name=REGION, create_table=False, config=config)

    config = MethodConfig(key_fields=["order.id"], scope=lambda: "bench")

    @idempotent_sync(backend=backend(), config=config)
    def handle(order: Order) -> dict[str, bool]:
        return {"ok": True}

    mine = backend()

    @idempotent(backend=mine, config=config)
    async def handle_async(order: Order) -> dict[str, bool]:
        return {"ok": True}

    @idempotent_sync(backend=backend(), config=config)
    def fail(order: Order) -> None:
        raise Boom

    return Peer(handle, handle_async, fail, mine.aclose)


def raw_boto3(url: str, threads: ThreadPoolExecutor) -> Peer:
    """The same requests as onceward's, by a client of boto3, with nothing around them."""
    client = boto3_client(url)

    def claim(key: str, owner: str) -> bool:
        try:
            client.put_item(
                TableName="boto3",
                Item=_item(key, "IN_PROGRESS", owner, "0"),
                ConditionExpression="attribute_not_exists(#k)",
                ExpressionAttributeNames={"#k": "key"},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            return error.response["Item"]["key"]["S"] != key
        return True

    def settle(key: str, owner: str, status: str) -> None:
        client.put_item(
            TableName="boto3",
            Item=_item(key, status, owner, "1") | {"result": {"S": '{"ok":true}'}},
            ConditionExpression="#o = :o AND #f = :f AND #b = :b",
            ExpressionAttributeNames={"#o": "owner", "#f": "fence", "#b": "beat"},
            ExpressionAttributeValues={":o": {"S": owner}, ":f": {"N": "1767225600123456"}, ":b": {"N": "0"}},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def ended(status: str) -> Callable[[Order], object]:
        def call(order: Order) -> None:
            owner = uuid.uuid4().hex
            if claim(order["id"], owner):
                settle(order["id"], owner, status)

        return call

    handle = ended("COMPLETED")
    return Peer(
        handle,
        lambda order: asyncio.get_running_loop().run_in_executor(threads, handle, order),
        ended("RELEASED"),
    )


def _item(key: str, status: str, owner: str, beat: str) -> dict[str, dict[str, str]]:
    return {
        "key": {"S": key},
        "status": {"S": status},
        "owner": {"S": owner},
        "fence": {"N": "1767225600123456"},
        "beat": {"N": beat},
        "lease_until": {"N": "1767225660.123456"},
        "attempts": {"N": "1"},
        "created_at": {"N": "1767225600.123456"},
        "expires_at": {"N": "1767830461"},
    }


def peers(url: str, threads: ThreadPoolExecutor) -> dict[str, Peer]:
    """Return all, talking to ``url``."""
    return {
        "onceward": onceward(url),
        "Powertools": powertools(url, threads),
        "idemkit": idemkit(url),
        "raw boto3": raw_boto3(url, threads),
    }
