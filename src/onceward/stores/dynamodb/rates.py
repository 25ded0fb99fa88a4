"""How many messages come, from the table's own metrics in CloudWatch (:data:`onceward.stores.capabilities.RATES`)."""

import time
from collections.abc import Mapping
from typing import Any, Final, cast

from onceward.core.drivers import drive
from onceward.errors import StoreError
from onceward.stores.contract import Rates
from onceward.stores.dynamodb.described import Document
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.store import DynamoStore
from onceward.wire.calls import Call
from onceward.wire.codes import message_of
from onceward.wire.credentials import client_of

_PERIOD: Final = 60  # seconds: DynamoDB's metrics have one value a minute
_LATE: Final = 180  # seconds after which a minute's value is there


def rates(store: DynamoStore, seconds: float) -> Rates:
    """Return the deliveries a second of the last ``seconds``, and the share of duplicates.

    A claim is a PutItem, and a duplicate is one that is refused. Batches and probes cannot be told apart from other requests.

    Raises:
        StoreError: the table or its metrics cannot be read.
    """
    name = store.requests.table
    answer = drive(store.ask(Call(DYNAMODB, "DescribeTable", {"TableName": name}), gone=400), store)
    if answer.status != 200:
        raise StoreError(f"ledger {store.url}: the table cannot be described: {message_of(answer)}")
    described = cast("Document", answer.body)["Table"]
    try:
        client = client_of("cloudwatch", described["TableArn"])
        span = max(_PERIOD, round(seconds / _PERIOD) * _PERIOD)
        claims = _sum(client, name, "SuccessfulRequestLatency", "SampleCount", span, {"Operation": "PutItem"})
        refused = _sum(client, name, "ConditionalCheckFailedRequests", "Sum", span)
    except ImportError as error:
        raise StoreError("CloudWatch's metrics are read with botocore: pip install 'onceward[dynamodb]'") from error
    except Exception as error:  # botocore's errors have no root of their own
        raise StoreError(f"ledger {store.url}: its metrics in CloudWatch cannot be read: {error}") from error
    deliveries = claims + refused  # a refused request is not among the successful ones
    return Rates(deliveries / span, refused / deliveries if deliveries else 0.0)


def _sum(
    client: Any, table: str, metric: str, statistic: str, span: int, more: Mapping[str, str] | None = None
) -> float:
    end = (time.time() - _LATE) // _PERIOD * _PERIOD
    told = client.get_metric_statistics(
        Namespace="AWS/DynamoDB",
        MetricName=metric,
        Dimensions=[{"Name": k, "Value": v} for k, v in {"TableName": table, **(more or {})}.items()],
        StartTime=end - span,
        EndTime=end,
        Period=_PERIOD,
        Statistics=[statistic],
    )
    return float(sum(point[statistic] for point in told["Datapoints"]))
