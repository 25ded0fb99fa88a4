"""Lambda's batch handlers, called in this process: SQS events of 10 messages, on a ledger near and far.

Each peer does what its documentation says, with the message's id as the key, and logs failures with their traceback.
Powertools calls its handlers one after the other; so does onceward here. idemkit has no handler for Lambda's events: its
queue consumer is given their messages, one after the other as its ``dispatch_sync`` takes them, and all at once.
"""

import asyncio
import gc
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from idemkit import ConsumerAction, DynamoBackend, IdempotentConsumer, QueueConfig

from delay_proxy import DelayProxy
from dynamodb_peers import REGION, Boom, Context, boto3_client
from measure import Cost, interleaved, table, timed
from onceward import Once
from onceward.aws import on_sqs, on_sqs_fifo

RECORDS, EVENTS, ROUNDS = 10, 4, 5
VISIBILITY = 30.0  # seconds, which idemkit wants to know
Event = dict[str, Any]
Handler = Callable[[Event], object]  # from an event to the partial batch response
log = logging.getLogger("benchmark")


class Kind(NamedTuple):
    """A kind of events.

    Attributes:
        name: what is shown.
        fresh: whether the messages of each event are new ones.
        bad: the number of the message whose handler fails, or None.
        reported: how many messages the response then has to name.
    """

    name: str
    fresh: bool = True
    bad: int | None = None
    reported: int = 0


NEW, AGAIN = Kind("new"), Kind("duplicates", fresh=False)
KINDS = (NEW, AGAIN, Kind("one fails", bad=4, reported=1))
FIFO_KINDS = (NEW, AGAIN, Kind("one fails", bad=4, reported=3))  # it is the third of its group


def lambdas(server: str, delayed: DelayProxy, counting: DelayProxy, delay: float) -> None:
    """Print the tables of standard and of FIFO queues, without and with the delay to the ledger."""
    for shown, made, kinds in (("", _peers, KINDS), ("FIFO ", _fifo_peers, FIFO_KINDS)):
        with ExitStack() as stack:
            asked = {
                name: _requests(name, handler, counting, kinds) for name, handler in made(counting.url, stack).items()
            }
            for url, wait in ((server, 0.0), (delayed.url, delay)):
                title = f"{shown}SQS events of {RECORDS} messages, {wait * 1e3:g} ms of delay to the ledger"
                _print(title, _costs(made(url, stack), f"{shown}{wait}", kinds), asked)


# --- the peers ------------------------------------------------------------------------------------------------------


def handle(order: Event) -> dict[str, bool]:
    """Do the work of one message."""
    if order["bad"]:
        raise Boom
    return {"ok": True}


async def handle_async(order: Event) -> dict[str, bool]:
    return handle(order)


def _peers(url: str, stack: ExitStack) -> dict[str, Handler]:
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}")
    mine = on_sqs(once)(handle)
    return {
        "onceward": lambda event: mine(event, Context()),
        "Powertools": _powertools(url, BatchProcessor(EventType.SQS, logger=log)),
        "idemkit, one by one": _idemkit(url),
        "idemkit, all at once": _idemkit_at_once(url, stack),
    }


def _fifo_peers(url: str, stack: ExitStack) -> dict[str, Handler]:
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}")
    mine = on_sqs_fifo(once)(handle)
    return {
        "onceward": lambda event: mine(event, Context()),
        "Powertools": _powertools(url, SqsFifoPartialProcessor(skip_group_on_error=True, logger=log)),
    }


def _powertools(url: str, processor: BatchProcessor) -> Handler:
    config = IdempotencyConfig(event_key_jmespath="messageId")

    @idempotent_function(
        data_keyword_argument="record",
        config=config,
        persistence_store=DynamoDBPersistenceLayer("powertools", boto3_client=boto3_client(url)),
    )
    def handle_record(record: SQSRecord) -> dict[str, bool]:
        return handle(record.json_body)

    def handler(event: Event) -> object:
        context = Context()
        config.register_lambda_context(context)
        return process_partial_response(event=event, record_handler=handle_record, processor=processor, context=context)

    return handler


def idemkit_backend(url: str) -> DynamoBackend:
    return DynamoBackend(table="idemkit", endpoint_url=url, region_name=REGION, create_table=False)


def _consumer(url: str) -> IdempotentConsumer:
    return IdempotentConsumer(
        backend=idemkit_backend(url),
        config=QueueConfig(
            dedup_id=lambda record: record["messageId"],
            receive_count=lambda record: record["attributes"]["ApproximateReceiveCount"],
            visibility_timeout_seconds=VISIBILITY,
        ),
    )


def _idemkit(url: str) -> Handler:
    consumer = _consumer(url)
    consumer.handle(lambda record: handle(json.loads(record["body"])))

    def handler(event: Event) -> object:
        return _response(event, [consumer.dispatch_sync(record) for record in event["Records"]])

    return handler


def _idemkit_at_once(url: str, stack: ExitStack) -> Handler:
    runner = stack.enter_context(asyncio.Runner())  # kept from one invocation to the next, as its connections are
    consumer = _consumer(url)
    stack.callback(lambda: runner.run(consumer._backend.aclose()))

    @consumer.handle
    async def handle_record(record: Event) -> dict[str, bool]:
        return await handle_async(json.loads(record["body"]))

    async def all_of(records: list[Event]) -> list[object]:
        return await asyncio.gather(*(consumer.dispatch(record) for record in records))

    return lambda event: _response(event, runner.run(all_of(event["Records"])))


def _response(event: Event, results: list[object]) -> object:
    failed = []
    for record, result in zip(event["Records"], results, strict=True):
        if result.action is not ConsumerAction.ACK:
            log.error("%s failed", record["messageId"], exc_info=result.error)
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}


# --- measuring ------------------------------------------------------------------------------------------------------


def _event(name: str, kind: Kind) -> Event:
    return {"Records": [_record(f"{name}-{n}", n % 2, bad=n == kind.bad) for n in range(RECORDS)]}


def _record(key: str, group: int, *, bad: bool) -> Event:
    return {
        "messageId": key,
        "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a",
        "body": json.dumps({"id": key, "amount": "12.50", "bad": bad}),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1795219200000",
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "ApproximateFirstReceiveTimestamp": "1795219200001",
            "MessageGroupId": str(group),
        },
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "awsRegion": REGION,
    }


def _handled(handler: Handler, event: Event, kind: Kind) -> None:
    told = len(handler(event)["batchItemFailures"])
    assert told == kind.reported, f"{kind.name}: {told} messages reported"


def _requests(name: str, handler: Handler, counting: DelayProxy, kinds: tuple[Kind, ...]) -> dict[str, float]:
    """Return the ledger's requests per message for each kind."""
    prefix = f"counted-{name}-{len(kinds)}-{kinds[-1].reported}"
    _handled(
        handler, _event(f"{prefix}-first", NEW), NEW
    )  # the first request of a process may be one for the server's time
    found = {}
    for kind in kinds:
        event = _event(f"{prefix}-{kind.name}", kind)
        for _ in range(1 if kind.fresh else 2):
            counting.tally()
            _handled(handler, event, kind)
        found[kind.name] = counting.tally().requests / RECORDS
    return found


def _costs(peers: dict[str, Handler], prefix: str, kinds: tuple[Kind, ...]) -> dict[tuple[str, str], Cost]:
    def case(name: str, handler: Handler, kind: Kind) -> Callable[[int], Cost]:
        def measure(turn: int) -> Cost:
            events = [_event(f"{prefix}-{name}-{kind.name}-{turn * kind.fresh}-{n}", kind) for n in range(EVENTS)]
            return timed(lambda: [_handled(handler, event, kind) for event in events], EVENTS * RECORDS)

        return measure

    gc.collect()
    gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
    cases = {(kind.name, name): case(name, handler, kind) for kind in kinds for name, handler in peers.items()}
    return interleaved(cases, ROUNDS)


def _print(title: str, costs: dict[tuple[str, str], Cost], asked: dict[str, dict[str, float]]) -> None:
    rows = []
    for (kind, name), cost in costs.items():
        theirs = costs[kind, "Powertools"]
        figures = (round(1e6 / cost.wall), round(cost.cpu), asked[name][kind])
        rows.append((f"{kind}, {name}", *figures, theirs.wall / cost.wall, theirs.cpu / cost.cpu))
    table(
        f"{title}: median of {ROUNDS} interleaved rounds",
        [
            "",
            "messages/s",
            "CPU µs/message",
            "ledger requests/message",
            "times as fast as Powertools",
            "CPU saved, times",
        ],
        rows,
    )
