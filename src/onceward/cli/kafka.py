"""``onceward kafka``: call a function once for each record of a Kafka topic."""

from typing import Annotated, Any

from typer import Argument, Option

from onceward.cli.ledgers import USAGE, refuse
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
Call a function exactly once for each record of a Kafka topic.

The function gets the record's value. JSON is decoded and converted to the annotation of its parameter. The function may be async.
When it returns, its result is recorded, and the offset is committed as soon as all records before it are done. When it raises, the
record waits in the topic TOPIC.onceward-retry for a pause that doubles each time, and its partition goes on. After 10 calls, or
--max-attempts, its key is parked, and the record goes to TOPIC.onceward-dead. [bold]onceward redrive kafka:TOPIC[/bold] sends it again
after the fix. Both topics are made if they are missing.

SIGTERM or ctrl-C ends it: running calls finish, and what is done is committed. KAFKA_SERVERS names the brokers, and
KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD and KAFKA_CA_FILE say how to log in.

Example: [bold]onceward kafka orders --call shop:charge --key order.id --store postgresql://db/shop[/bold]
"""
HELP += STATUSES

TopicArgument = Annotated[str, Argument(metavar="TOPIC", help="Its name.", show_default=False)]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="What identifies a record: order.id for def charge(order). A producer that sends twice makes two offsets, so give it.",
        show_default="its header Idempotency-Key, else its offset",
    ),
]
ServersOption = Annotated[
    str | None, Option(metavar="HOST:PORT,…", help="The brokers.", show_default="KAFKA_SERVERS, else localhost:9092")
]
GroupOption = Annotated[
    str | None, Option(metavar="NAME", help="The consumer group.", show_default="the namespace of the keys")
]
OrderOption = Annotated[
    bool, Option("--order", help="Handle each partition in order: it waits for a record that failed.")
]
SettingOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="A setting of aiokafka's consumer, such as session_timeout_ms=30000; several times, if needed.",
        show_default=False,
    ),
]


@with_command_options
def kafka(
    topic: TopicArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    servers: ServersOption = None,
    group: GroupOption = None,
    order: OrderOption = False,
    setting: SettingOption = None,
    max_attempts: AttemptsOption = None,
    options: CommandOptions,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""
    settings = dict(_setting(text) for text in setting or ())

    def made(once: Once, common: WorkerOptions) -> ReportedWorker[Any]:
        from onceward.kafka import KafkaWorker  # needs aiokafka, which other commands do not

        class Reported(ReportedWorker[Any], KafkaWorker): ...

        return Reported(
            once,
            topic,
            imported(call),
            servers=servers,
            group=group,
            order=order,
            settings=settings,
            **common,
        )

    options.work(made, key=key, max_attempts=max_attempts)


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        refuse(f"--setting {text}: give NAME=VALUE, as in session_timeout_ms=30000", USAGE)
    return name, int(value) if value.isdecimal() else value
