"""``onceward nats``: call a function once for each message of a subject of NATS JetStream."""

from typing import Annotated, Any

from typer import Argument, Option

from onceward.cli.working import (
    STATUSES,
    AttemptsOption,
    CallOption,
    CommandOptions,
    ReportedWorker,
    with_command_options,
)
from onceward.consumers.worker import WorkerOptions
from onceward.once import Once
from onceward.pipe.functions import imported

HELP = r"""
Call a function exactly once for each message of a subject of NATS JetStream.

The function gets the message's data. JSON is decoded and converted to the annotation of its parameter. The function may be async.
When it returns, its result is recorded and the message is acknowledged. When it raises, the message comes again after a pause that
doubles each time. After 10 calls, or --max-attempts, its key is parked, and the message goes to the subject SUBJECT.onceward-dead. The
stream of SUBJECT must be there; one whose settings lose messages is refused. The durable consumer is made if it is missing, and so is a
stream for the dead letters.

SIGTERM or ctrl-C ends it: running calls finish, and other messages go back. NATS_URL says where NATS is.

Example: [bold]onceward nats orders.new --call shop:charge --key order.id --store postgresql://db/shop[/bold]
"""
HELP += STATUSES

SubjectArgument = Annotated[
    str,
    Argument(metavar="SUBJECT", help="Its name. It may have wildcards; then give --dead, too.", show_default=False),
]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="What identifies a message: order.id for def charge(order).",
        show_default="its header Idempotency-Key, else Nats-Msg-Id, else its place in the stream",
    ),
]
UrlOption = Annotated[
    str | None,
    Option(
        metavar="URL",
        envvar="NATS_URL",
        help="nats://user:password@host:4222; several with commas.",
        show_default="localhost",
    ),
]
StreamOption = Annotated[
    str | None, Option(metavar="NAME", help="The stream.", show_default="the one that takes SUBJECT")
]
DurableOption = Annotated[
    str | None, Option(metavar="NAME", help="The durable consumer.", show_default="the namespace of the keys")
]
DeadOption = Annotated[
    str | None,
    Option(metavar="SUBJECT", help="The subject of the dead letters.", show_default="SUBJECT.onceward-dead"),
]


@with_command_options
def nats(
    subject: SubjectArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    url: UrlOption = None,
    stream: StreamOption = None,
    durable: DurableOption = None,
    dead: DeadOption = None,
    max_attempts: AttemptsOption = None,
    options: CommandOptions,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""

    def made(once: Once, common: WorkerOptions) -> ReportedWorker[Any]:
        from onceward.nats import NatsWorker  # needs nats-py, which other commands do not

        class ReportedNats(ReportedWorker[Any], NatsWorker): ...

        return ReportedNats(
            once,
            subject,
            imported(call),
            url=url,
            stream=stream,
            durable=durable,
            dead=dead,
            **common,
        )

    options.work(made, key=key, max_attempts=max_attempts)
