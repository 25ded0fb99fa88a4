"""``onceward work``: call a function once for each message of a queue, whatever broker has it."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer
from typer import Argument, Option

from onceward.batch.outcomes import BatchOutcome
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    AttemptsOption,
    EmptyOption,
    LinesOption,
    StoreOption,
    opened,
    refuse,
    refuse_login,
    usage,
)
from onceward.cli.report import WorkReport, heard
from onceward.consumers.stop import signals
from onceward.consumers.worker import Worker
from onceward.core.urls import shown_url
from onceward.errors import OncewardError
from onceward.lazily import required
from onceward.once import Once
from onceward.outbox import sender
from onceward.outbox.targets import SENT_WITHIN

if TYPE_CHECKING:
    from onceward.pipelines.pipeline import PipelineRun
    from onceward.pipelines.sources.brokers import WorkerSource


DONE, LEFT, ONLY_MALFORMED, FAILED, INTERRUPTED, BROKEN = 0, 1, 3, 4, 130, 141
_TICK = 0.2  # seconds between two looks at what is in flight
_MOMENT = 0.05  # seconds between two looks at what is not sent
_PATIENCE = 3.0  # seconds without a message that was sent, after which the rest is left to a relay
_ANSWERED = SENT_WITHIN + 2.0  # the same while a request is under way
M = TypeVar("M")


class ReportedWorker(Worker[M]):
    """A worker that reports each message. Derive from this first, and then from the worker."""

    wants_values = True
    report: WorkReport

    def told(self, outcome: BatchOutcome) -> None:
        super().told(outcome)
        self.report.outcome(outcome)


def run_worker(
    once: Once,
    make: "Callable[[], Worker[Any] | PipelineRun]",
    *,
    until_empty: bool,
    report: WorkReport,
    has_grace: bool = False,
) -> NoReturn:
    """Run a worker until it is told to stop, and end the command. With a grace, calls may still run then in their threads."""
    with usage():
        worker = make()
    report.stop = worker.stop
    status, end = _run(worker, report, until_empty=until_empty)
    report.summary(end, "the queue is empty")
    once.close()
    if report.broken is not None:
        status = BROKEN if isinstance(report.broken, BrokenPipeError) else LEFT
    if status == INTERRUPTED or has_grace:
        sys.stderr.flush()
        os._exit(status)  # the keys of such calls stay claimed to the end of their leases
    raise typer.Exit(status)


def _run(worker: "Worker[Any] | PipelineRun", report: WorkReport, *, until_empty: bool) -> tuple[int, str]:
    """Work; return the exit status, and why it ended if the queue was not empty."""
    ended = threading.Event()

    def tick() -> None:
        is_told = False
        while not ended.wait(_TICK):
            if worker.stopping and not is_told:
                report.say(
                    "stopping: waiting for running calls and the poll under way; a second signal interrupts them"
                )
                is_told = True
            report.tick(f"; in flight {worker.in_flight}")

    report.start()
    ticks = threading.Thread(target=tick, name="onceward-ticks", daemon=True)
    ticks.start()
    try:
        with heard(report, logging.INFO if report.as_json else logging.WARNING):
            worker.run(until_empty=until_empty)
            unsent = _unsent(inf if until_empty and not worker.stopping else sender.AT_EXIT)
    except (KeyboardInterrupt, SystemExit) as end:
        keys = "the keys of the calls that were running stay claimed to the end of their leases"
        return INTERRUPTED, f"ended by {end!r}: {keys}"
    except (OncewardError, ValueError) as error:
        return FAILED, f"stopped: {error}"
    finally:
        ended.set()
        ticks.join()
    if worker.stopping or not until_empty:
        return DONE, "; ".join(["stopped", *unsent])
    counts = report.counts
    if unsent or any(counts[kind] for kind in ("failed", "parked", "mismatch", "busy")):
        return LEFT, "; ".join(unsent)
    return (ONLY_MALFORMED if counts["malformed"] else DONE), ""


def drained(most: float, stopped: Callable[[int], object]) -> int:
    """Send what was completed, as long as any leaves, and return how many records are left for a relay.

    Args:
        most: seconds in all.
        stopped: returns whether to stop; it is told how many records are left.
    """
    began = since = time.monotonic()
    before = sender.SENDER.gone
    while remaining := sender.drain(_TICK):
        now = time.monotonic()
        if (gone := sender.SENDER.gone) != before:
            before, since = gone, now
        patience = _ANSWERED if sender.SENDER.is_busy else _PATIENCE
        if stopped(remaining) or now - began >= most or now - since >= patience:
            break
        time.sleep(_MOMENT)
    return remaining


def _unsent(most: float) -> list[str]:
    """Send what was completed, and return what to say of the rest, which the ledger has."""
    stops: list[bool] = []  # a signal handler takes no lock
    with signals(lambda: stops.append(True)):
        remaining = drained(most, lambda _: stops)
    refusals = sender.SENDER.refused
    lines = [f"the messages of {remaining} record(s) are not sent yet: onceward relay sends them"] if remaining else []
    return lines + ([f"targets have refused {refusals} message(s) for good"] if refusals else [])


# What comes before the colon → the queue's settings, which are those of a pipeline's source.
_BROKERS: Final = {
    "sqs": "SqsSource",
    "kafka": "KafkaSource",
    "rabbitmq": "RabbitmqSource",
    "nats": "NatsSource",
    "redis": "RedisStreamsSource",
}


def work(
    place: Annotated[str, Argument()],
    *,
    call: str,
    key: str | None = None,
    setting: Annotated[list[str] | None, Option("--set")] = None,
    max_attempts: AttemptsOption = None,
    fingerprint: str | None = None,
    name: str | None = None,
    store: StoreOption = DEFAULT_STORE,
    concurrency: Annotated[int, Option("--concurrency", "-c", min=1, max=1000)] = 10,
    lease: float = 60.0,
    until_empty: EmptyOption = False,
    as_json: LinesOption = False,
) -> None:
    """Call a function exactly once for each message of a queue.

    PLACE is sqs:QUEUE (its name, ARN or URL), kafka:TOPIC, rabbitmq:QUEUE, nats:SUBJECT or redis:STREAM. The function
    gets the message's body. JSON is decoded and converted to the annotation of its parameter. The function may be
    async. When it returns, its result is recorded and the message is acknowledged. When it raises, the message comes
    again after a pause that doubles each time. After 10 calls, or --max-attempts, its key is parked, and the message
    goes to the dead letters. For a queue of SQS with a redrive policy, onceward sets no such limit. onceward refuses a
    queue whose settings lose messages.

    These variables say where the broker is, and how to log in: AWS_REGION, AWS_PROFILE and AWS_ENDPOINT_URL_SQS;
    KAFKA_SERVERS, KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD and
    KAFKA_CA_FILE; AMQP_URL; NATS_URL; REDIS_URL.

    --set has the settings of one broker. sqs: unwrap, visibility, wait. kafka: servers, group, order, retry, dead,
    settings.NAME (of aiokafka's consumer). rabbitmq: url, dead, prefetch, wait. nats: url, stream, durable, dead,
    settings.NAME (of the connection). redis: url, group, dead, idle.

    SIGTERM or ctrl-C ends it: running calls finish, and other messages go back.

    Example: [bold]onceward work kafka:orders --call shop:charge --key order.id --set group=shop --store
    postgresql://db/shop[/bold]

    Exit status: [bold]0[/bold] stopped, or empty and all done; [bold]1[/bold] empty, but some failed, are parked or
    busy, or not all messages of claim.send are sent; [bold]2[/bold] usage; [bold]3[/bold] empty, and all but malformed
    messages are done; [bold]4[/bold] the queue or the ledger failed; [bold]130[/bold] interrupted while functions were
    running, also by sys.exit in one; [bold]141[/bold] the reader of the output is gone.

    Options:
        place (PLACE): The queue, as in kafka:orders.
        call (MODULE:FUNCTION): The function. Its module can be in this directory.
        key (JMESPATH): What identifies a message: order.id for def charge(order). By default: its header
            Idempotency-Key, else its id or place; in SQS its id.
        setting (NAME=VALUE): A setting of the broker. Can be repeated.
        max_attempts (N): Calls after which a key is parked. By default: 10.
        fingerprint (JMESPATH): What must not change under one key; order is the whole message for def charge(order). By
            default: nothing is compared.
        name (NAME): The namespace of the keys. By default: the function's full name.
        concurrency (N): Calls at a time.
        lease (S): Seconds until another worker may take over the keys of a killed worker.
    """
    source = _source(place, setting or [])

    once = opened(store)
    report = WorkReport(as_json=as_json)
    reported: Any = type("Reported", (ReportedWorker, source.worker_class()), {"report": report})

    def build() -> ReportedWorker[Any]:
        from onceward.pipe.functions import imported

        worker: ReportedWorker[Any] = source.make(
            reported,
            once,
            imported(call),
            key=key,
            fingerprint=fingerprint,
            name=name,
            concurrency=concurrency,
            lease=lease,
            max_attempts=max_attempts,
        )
        return worker

    run_worker(once, build, until_empty=until_empty, report=report)


def _source(place: str, assigned: list[str]) -> "WorkerSource":
    """Return the queue and its settings. What is wrong with them ends the command."""
    import msgspec

    from onceward.pipelines.sources import brokers

    refuse_login(place)
    broker, colon, queue = place.partition(":")
    if broker not in _BROKERS or not colon or not queue:
        forms = ", ".join(f"{name}:orders" for name in _BROKERS)
        refuse(f"{shown_url(place)}: give a queue and its broker, as in {forms}")
    kind: type[WorkerSource] = getattr(brokers, _BROKERS[broker])
    settings: dict[str, Any] = {}
    nested: dict[str, str] = {}
    first = kind.__struct_fields__[0]
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals or name == first:
            refuse(f"--set {name}: give NAME=VALUE, a setting of {broker}")
        if name.startswith("settings."):
            nested[name.removeprefix("settings.")] = value
        else:
            settings[name] = {"true": True, "false": False}.get(value, value)
    settings |= {first: queue} | ({"settings": nested} if nested else {})
    if kind.library is not None:
        module, extra = kind.library
        with usage():
            required(module, f"{broker}:", extra)
    try:
        return msgspec.convert(settings, kind, strict=False)
    except msgspec.ValidationError as error:
        refuse(f"--set: {error}")
