"""``onceward rabbitmq``: call a function once for each message of a queue of RabbitMQ."""

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
Call a function exactly once for each message of a queue of RabbitMQ.

The function gets the message's body. JSON is decoded and converted to the annotation of its parameter. The function may be async.
When it returns, its result is recorded and the message is acknowledged. When it raises, the message waits in a queue such as
QUEUE.onceward-retry.1s for a pause that doubles each time. After 10 calls, or --max-attempts, its key is parked, and the message goes
to QUEUE.onceward-dead. These queues are declared. QUEUE must be there, as a durable quorum queue; one whose settings lose messages is
refused.

SIGTERM or ctrl-C ends it: running calls finish, and other messages go back. AMQP_URL says where RabbitMQ is.

Example: [bold]onceward rabbitmq orders --call shop:charge --key order.id --store postgresql://db/shop[/bold]
"""
HELP += STATUSES

QueueArgument = Annotated[str, Argument(metavar="QUEUE", help="Its name.", show_default=False)]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="What identifies a message: order.id for def charge(order).",
        show_default="its header Idempotency-Key, else its message id",
    ),
]
UrlOption = Annotated[
    str | None,
    Option(
        metavar="URL",
        envvar="AMQP_URL",
        help="amqp://user:password@host/vhost; amqps:// for TLS.",
        show_default="localhost",
    ),
]
DeadOption = Annotated[
    str | None,
    Option(
        metavar="QUEUE",
        help="The dead-letter queue, or none: then the ledger keeps messages.",
        show_default="QUEUE.onceward-dead",
    ),
]
PrefetchOption = Annotated[
    int | None,
    Option(
        min=1,
        max=65_535,
        metavar="N",
        help="Messages that RabbitMQ hands over at a time.",
        show_default="twice --concurrency",
    ),
]


@with_command_options
def rabbitmq(
    queue: QueueArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    url: UrlOption = None,
    dead: DeadOption = None,
    prefetch: PrefetchOption = None,
    max_attempts: AttemptsOption = None,
    options: CommandOptions,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""

    def made(once: Once, common: WorkerOptions) -> ReportedWorker[Any]:
        from onceward.rabbitmq import RabbitWorker  # needs aio-pika, which other commands do not

        class ReportedRabbit(ReportedWorker[Any], RabbitWorker): ...

        return ReportedRabbit(
            once,
            queue,
            imported(call),
            url=url,
            dead=False if dead == "none" else dead or True,
            prefetch=prefetch,
            **common,
        )

    options.work(made, key=key, max_attempts=max_attempts)
