"""``onceward redis-streams``: call a function once for each entry of a stream of Redis."""

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
Call a function exactly once for each entry of a stream of Redis.

The function gets the entry's data: the field __data__, else an object of all fields. JSON is decoded and converted to the annotation of
its parameter. The function may be async. When it returns, its result is recorded and the entry is acknowledged. When it raises, the
entry comes again after a pause that doubles each time. After 10 calls, or --max-attempts, its key is parked, and the entry goes to the
stream STREAM.onceward-dead. The stream and its group are made if they are missing. A server whose settings lose entries is refused.

SIGTERM or ctrl-C ends it: running calls finish, and other entries go back. REDIS_URL says where Redis is.

Example: [bold]onceward redis-streams orders --call shop:charge --key order.id --store postgresql://db/shop[/bold]
"""
HELP += STATUSES

StreamArgument = Annotated[str, Argument(metavar="STREAM", help="Its name.", show_default=False)]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="What identifies an entry: order.id for def charge(order).",
        show_default="its header Idempotency-Key, else its stream and id",
    ),
]
UrlOption = Annotated[
    str | None,
    Option(
        metavar="URL",
        envvar="REDIS_URL",
        help="redis://user:password@host:6379/0; rediss:// for TLS.",
        show_default="localhost",
    ),
]
GroupOption = Annotated[
    str | None, Option(metavar="NAME", help="The consumer group.", show_default="the namespace of the keys")
]
DeadOption = Annotated[
    str | None,
    Option(metavar="STREAM", help="The stream of the dead letters.", show_default="STREAM.onceward-dead"),
]
IdleOption = Annotated[
    float,
    Option(
        metavar="S",
        help="Seconds after which the entries of a killed worker are claimed. All workers of a group must give the same.",
    ),
]


@with_command_options
def redis_streams(
    stream: StreamArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    url: UrlOption = None,
    group: GroupOption = None,
    dead: DeadOption = None,
    idle: IdleOption = 60.0,
    max_attempts: AttemptsOption = None,
    options: CommandOptions,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""

    def made(once: Once, common: WorkerOptions) -> ReportedWorker[Any]:
        from onceward.redis_streams import RedisStreamsWorker  # needs redis-py, which other commands do not

        class ReportedStream(ReportedWorker[Any], RedisStreamsWorker): ...

        return ReportedStream(
            once,
            stream,
            imported(call),
            url=url,
            group=group,
            dead=dead,
            idle=idle,
            **common,
        )

    options.work(made, key=key, max_attempts=max_attempts)
