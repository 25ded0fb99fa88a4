"""``onceward kafka``: call a function once for each record of a Kafka topic."""

from typing import Annotated, Any

from typer import Argument, Option

from onceward.cli.ledgers import DEFAULT_STORE, USAGE, StoreOption, opened, refuse
from onceward.cli.working import (
    STATUSES,
    CallOption,
    ConcurrencyOption,
    EmptyOption,
    FingerprintOption,
    GraceOption,
    JsonOption,
    LeaseOption,
    NameOption,
    RelayOption,
    ReportedWorker,
    work,
)
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
AttemptsOption = Annotated[
    int | None, Option(min=1, metavar="N", help="Calls after which a key is parked.", show_default="10")
]
SettingOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="A setting of aiokafka's consumer, such as session_timeout_ms=30000; several times, if needed.",
        show_default=False,
    ),
]


def kafka(
    topic: TopicArgument,
    *,
    call: CallOption,
    key: KeyOption = None,
    fingerprint: FingerprintOption = None,
    servers: ServersOption = None,
    group: GroupOption = None,
    order: OrderOption = False,
    setting: SettingOption = None,
    name: NameOption = None,
    store: StoreOption = DEFAULT_STORE,
    concurrency: ConcurrencyOption = 10,
    lease: LeaseOption = 60.0,
    max_attempts: AttemptsOption = None,
    grace: GraceOption = None,
    until_empty: EmptyOption = False,
    relay: RelayOption = True,
    as_json: JsonOption = False,
) -> None:
    """Work until told to stop. HELP lists the exit statuses."""
    once = opened(store)
    settings = dict(_setting(text) for text in setting or ())

    def made() -> ReportedWorker[Any]:
        from onceward.kafka import KafkaWorker  # needs aiokafka, which other commands do not
        from onceward.kafka.partitions import KafkaMessage

        class Reported(ReportedWorker[KafkaMessage], KafkaWorker): ...

        return Reported(
            once,
            topic,
            imported(call),
            key=key,
            fingerprint=fingerprint,
            servers=servers,
            group=group,
            order=order,
            settings=settings,
            name=name,
            concurrency=concurrency,
            grace=grace,
            lease=lease,
            max_attempts=max_attempts,
            relay=relay,
        )

    work(once, made, until_empty=until_empty, grace=grace, as_json=as_json)


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        refuse(f"--setting {text}: give NAME=VALUE, as in session_timeout_ms=30000", USAGE)
    return name, int(value) if value.isdecimal() else value
