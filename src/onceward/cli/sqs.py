"""``onceward sqs``: call a function once for each message of an SQS queue."""

import logging
import os
import sys
import threading
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from onceward.aws.sqs.worker import SqsWorker
from onceward.batch.outcomes import BatchOutcome
from onceward.cli.ledgers import DEFAULT_STORE, USAGE, StoreOption, opened, refuse
from onceward.cli.sqs_report import Heard, SqsReport
from onceward.errors import OncewardError
from onceward.pipe.functions import imported

DONE, LEFT, ONLY_MALFORMED, FAILED, INTERRUPTED, BROKEN = 0, 1, 3, 4, 130, 141
_TICK = 0.2  # seconds between two looks at what is in flight

HELP = r"""
Call a function exactly once for each message of an SQS queue.

QUEUE is the queue's URL, ARN or name. The function gets the message's body. JSON is decoded and converted to the annotation of
its parameter. The function may be async. When it returns, its result is recorded and the message is deleted. When it raises,
the message comes again after a pause that doubles each time, until the queue's redrive policy moves it to the dead-letter
queue. Without a redrive policy the key is parked after 10 calls, or --max-attempts. The ledger then keeps the message, and
[bold]onceward unpark KEY --to QUEUE[/bold] sends it again. A message that comes again after its effect was recorded is deleted
without a call.

SIGTERM or ctrl-C ends it: running calls finish, and other messages are given back. Region, credentials and endpoint are found
as AWS's own tools find them: AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL_SQS.

Example: [bold]onceward sqs orders --call shop:charge --key order.id --store dynamodb://ledger[/bold]

Exit status: [bold]0[/bold] stopped, or empty and all done; [bold]1[/bold] empty, but some failed, are parked or busy;
[bold]2[/bold] usage; [bold]3[/bold] empty, and all but malformed messages are done; [bold]4[/bold] the queue or the ledger failed;
[bold]130[/bold] interrupted while functions were running; [bold]141[/bold] the reader of the output is gone.
"""

QueueArgument = Annotated[str, Argument(metavar="QUEUE", help="Its URL, ARN or name.", show_default=False)]
CallOption = Annotated[
    str, Option(metavar="MODULE:FUNCTION", help="The function; its module may lie in this directory.")
]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH", help="What identifies a message: order.id for def charge(order).", show_default="its id"
    ),
]
FingerprintOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="What must not change under one key; order is the whole message for def charge(order).",
        show_default="nothing is compared",
    ),
]
UnwrapOption = Annotated[
    Literal["sns"] | None, Option(help="The messages are in SNS's envelopes: take them out.", show_default=False)
]
NameOption = Annotated[
    str | None, Option(metavar="NAME", help="The namespace of the keys.", show_default="the function's full name")
]
ConcurrencyOption = Annotated[int, Option("--concurrency", "-c", min=1, max=1000, metavar="N", help="Calls at a time.")]
LeaseOption = Annotated[
    float, Option(metavar="S", help="Seconds until another worker may take over the keys of a killed worker.")
]
AttemptsOption = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Calls after which a key is parked.",
        show_default="10 without a redrive policy, else no limit",
    ),
]
VisibilityOption = Annotated[
    int | None,
    Option(
        metavar="S", help="Seconds until the messages of a killed worker come again.", show_default="the queue's own"
    ),
]
WaitOption = Annotated[float, Option(metavar="S", help="Seconds that a poll waits for a message, up to 20.")]
GraceOption = Annotated[
    float | None,
    Option(metavar="S", help="Seconds to wait for running calls when stopped.", show_default="as long as it takes"),
]
EmptyOption = Annotated[bool, Option("--until-empty", help="End when the queue has no more messages to give.")]
JsonOption = Annotated[bool, Option("--json", help="Write one JSON object per message, and per line of the log.")]


def sqs(
    queue: QueueArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    fingerprint: FingerprintOption = None,
    unwrap: UnwrapOption = None,
    name: NameOption = None,
    store: StoreOption = DEFAULT_STORE,
    concurrency: ConcurrencyOption = 10,
    lease: LeaseOption = 60.0,
    max_attempts: AttemptsOption = None,
    visibility: VisibilityOption = None,
    wait: WaitOption = 20.0,
    grace: GraceOption = None,
    until_empty: EmptyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""
    once = opened(store)
    report = SqsReport(as_json=as_json)
    try:
        worker = _ReportedWorker(
            once,
            queue,
            imported(call),
            key=key,
            fingerprint=fingerprint,
            unwrap=unwrap,
            name=name,
            concurrency=concurrency,
            visibility=visibility,
            wait=wait,
            grace=grace,
            lease=lease,
            max_attempts=max_attempts,
        )
    except (ValueError, TypeError) as error:
        refuse(str(error), USAGE)
    worker.report, report.stop = report, worker.stop
    status, end = _run(worker, report, until_empty=until_empty)
    report.summary(end)
    once.close()
    worker.queue.close()
    if report.broken is not None:
        status = BROKEN if isinstance(report.broken, BrokenPipeError) else LEFT
    if status == INTERRUPTED or grace is not None:
        sys.stderr.flush()
        os._exit(status)  # a called function may still run in its thread; its key stays claimed to the end of its lease
    raise typer.Exit(status)


class _ReportedWorker(SqsWorker):
    """A worker that reports each message."""

    wants_values = True
    report: SqsReport

    def told(self, outcome: BatchOutcome) -> None:
        super().told(outcome)
        self.report.outcome(outcome)


def _run(worker: SqsWorker, report: SqsReport, *, until_empty: bool) -> tuple[int, str]:
    """Work; return the exit status, and why it ended if the queue was not empty."""
    log = logging.getLogger("onceward")
    heard = Heard(report)
    log.addHandler(heard)
    log.setLevel(heard.level)
    log.propagate = False
    ended = threading.Event()

    def tick() -> None:
        told = False
        while not ended.wait(_TICK):
            if worker.stopping and not told:
                report.say(
                    "stopping: waiting for running calls and the poll under way; a second signal interrupts them"
                )
                told = True
            report.tick(worker.in_flight)

    report.start()
    ticks = threading.Thread(target=tick, name="onceward-ticks", daemon=True)
    ticks.start()
    try:
        worker.run(until_empty=until_empty)
    except KeyboardInterrupt:
        return (
            INTERRUPTED,
            "interrupted: the keys of the calls that were running stay claimed to the end of their leases",
        )
    except (OncewardError, ValueError) as error:
        return FAILED, f"stopped: {error}"
    finally:
        ended.set()
        ticks.join()
        log.removeHandler(heard)
    if not until_empty:
        return DONE, "stopped"
    counts = report.counts
    if any(counts[kind] for kind in ("failed", "parked", "mismatch", "busy")):
        return LEFT, ""
    return (ONLY_MALFORMED if counts["malformed"] else DONE), ""
