"""The commands that make a ledger, or bring it up to this version: init and migrate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from onceward import terminal
from onceward.cli.ledgers import DEFAULT_STORE, JsonOption, StoreOption, ledger_at, looking_at
from onceward.core.drivers import drive
from onceward.stores.capabilities import DOCUMENT, MIGRATE, PROVISION, TEMPLATE, TableSpec
from onceward.stores.contract import Part, Store

if TYPE_CHECKING:
    from onceward.aws.templates import Consumer


def init(
    store: StoreOption = DEFAULT_STORE,
    pitr: bool = False,
    ttl: bool = False,
    print_: Annotated[str | None, Option("--print")] = None,
    kms_key: str | None = None,
    function: str | None = None,
    timeout: Annotated[int | None, Option(min=1, max=900)] = None,
    queue: str | None = None,
    alarms: str | None = None,
    json: JsonOption = False,
) -> None:
    """Make the ledger, such as an SQLite file, tables in PostgreSQL, or a DynamoDB table (on demand, with a TTL). It does not change what exists.

    A DynamoDB table with items gets a TTL only if you pass --ttl, because TTL would also delete items that are not
    onceward's.

    Options:
        pitr: With --print, DynamoDB: switch point-in-time recovery on. AWS charges for it by the table's size.
        ttl: DynamoDB: switch TTL on even if the table has items. TTL deletes items that have expired.
        print_ (F): Print a definition, and make nothing. DynamoDB: cloudformation, terraform or sam. SQL stores: sql.
        kms_key (ARN): With --print: your key that encrypts the table; the ARN of the key, not an alias.
        function (NAME): With --print: also make the event source mapping of this Lambda function, and its queue.
        timeout (S): With --function: the function's timeout in seconds. A message stays hidden six times as long. By
            default: 30.
        queue (ARN): With --function: an existing queue. By default: a new one.
        alarms (ARN): With --function: also make alarms, which send to this SNS topic.
    """
    options = {name for name, is_on in (("pitr", pitr), ("ttl", ttl)) if is_on}
    with ledger_at(store) as once:
        aws = TableSpec(options, kms_key)
        if function is None and (timeout, queue, alarms) != (None, None, None):
            raise ValueError("--timeout, --queue and --alarms are for --function")
        consumer = None if function is None else _consumer(function, timeout or 30, queue, alarms)
        if print_ is not None:
            typer.echo(_render(once.store, print_, aws, consumer), nl=False)
            return
        if pitr or consumer is not None or aws != TableSpec(options):
            raise ValueError("--pitr, --kms-key and --function are for --print")
        make = PROVISION.require(once.store) if options else PROVISION.of(once.store)
        parts = [] if make is None else drive(make(options), once.store)
    lines = [f"{'made' if part.made else 'was there'}: {part.what}" for part in parts]
    _tell(once.store.url, parts, lines or [f"{once.store.url} needs nothing made"], json=json)


def _consumer(*arguments: Any) -> "Consumer":
    from onceward.aws.templates import Consumer

    return Consumer(*arguments)


def _render(store: Store, form: str, aws: TableSpec, consumer: "Consumer | None") -> str:
    """Return the ledger as code, in a form that its kind of store has."""
    if form == "sql":
        if consumer is not None or aws != TableSpec():
            raise ValueError(f"{store.url}: --pitr, --ttl, --kms-key and --function are for a ledger in DynamoDB")
        return TEMPLATE.require(store)()
    from onceward.aws.templates import FORMS, render

    if form not in FORMS:
        raise ValueError(f"--print {form}: there are {', '.join(FORMS)} and sql")
    return render(form, DOCUMENT.require(store)(aws), consumer)


def migrate(store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Update a ledger of an earlier version: add the columns and indexes that this version needs. It does not change records.

    Earlier versions can still use the ledger. A worker makes the same changes at its first use, if it may. If your
    workers have no right to alter the ledger, run this command before you deploy them.
    """
    with looking_at(store) as ledger:
        migration = MIGRATE.of(ledger.store)
        parts = [] if migration is None else drive(migration(), ledger.store)
    url = ledger.store.url
    _tell(
        url, parts, [f"added: {part.what}" for part in parts if part.made] or [f"{url} needs no migration"], json=json
    )


def _tell(url: str, parts: Sequence[Part], lines: Sequence[str], *, json: bool) -> None:
    as_json = terminal.json({"store": url, "parts": [part._asdict() for part in parts]})
    typer.echo(as_json if json else "\n".join(map(terminal.line, lines)))
