"""The commands for single keys: show, clear, park, unpark, settle and retry."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from typer import Argument, Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    TROUBLE,
    JsonOption,
    SealOption,
    StoreOption,
    YesOption,
    imported_seal,
    looking_at,
    refuse,
    seconds,
    usage,
)
from onceward.cli.records import as_json, details, show_chain
from onceward.core.protocol import message_in
from onceward.core.record import COMPLETED, Record
from onceward.core.urls import shown_url
from onceward.core.views import UNSETTLED, NextStep, next_step
from onceward.dashboard.actions import send_again
from onceward.errors import Busy
from onceward.keys.json_reading import NotJson, read_json
from onceward.stores.contract import Damaged, KeepsMessage
from onceward.stores.ledger import Ledger
from onceward.terminal import line, quoted

_ANYWAY = "Pass --yes to do it anyway"


KeyArgument = Annotated[str, Argument(metavar="KEY", help="The key as `onceward ls` shows it.")]


def show(
    key: KeyArgument,
    stores: Annotated[list[str] | None, Option("--store", envvar="ONCEWARD_STORE")] = None,
    chain: bool = False,
    json: JsonOption = False,
) -> None:
    """Show the record of a key, and what you can do next.

    With --chain it shows the keys before this one, whose messages led to it, and the keys after it. Messages that
    handlers send with claim.send carry the key of their sender. To find the keys after it, a ledger needs an index,
    which `onceward migrate` adds to an older one, and DynamoDB does not have. With --json each line is one key, in the
    order of the tree; `depth` is its distance from the beginning.

    Options:
        stores (URL): The ledger, as in the other commands. With --chain, give it again for each ledger that the chain
            passes through. By default: sqlite:///onceward.db.
        chain: Show the keys before this one and after it.
    """
    store, *others = dict.fromkeys(stores or [DEFAULT_STORE])
    if chain:
        show_chain(key, [store, *others], json=json)
        return
    if others:
        refuse("several --store are for --chain")
    with looking_at(store) as ledger:
        options = (
            "" if store == os.environ.get("ONCEWARD_STORE", DEFAULT_STORE) else f" --store {quoted(shown_url(store))}"
        )
        record, now = ledger.show(key)
        typer.echo(as_json(record, now) if json else details(record, now, options))


def clear(
    key: KeyArgument,
    yes: YesOption = False,
    lose: Annotated[bool, Option("--lose-messages")] = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Forget a key: its next delivery runs again.

    It needs --yes if the key is completed, a worker has the key, or its record keeps a message. It also needs --yes for a
    record of a later version of onceward that this version does not understand. A key with unsent messages is not cleared,
    unless you pass --lose-messages.

    Options:
        yes: Do it even if the key is completed, a worker has the key, or its record keeps a message, which is lost.
        lose: Clear the key even if it has unsent messages. These messages are lost.
    """
    with looking_at(store) as ledger, _refusing():
        keys = ledger if yes else _Unfinished(ledger.store)
        record = keys.clear(key, live=yes, message=yes, unsent=lose)
        was = record.status if isinstance(record, Record) else "one that could not be read"
        _tell(record, f"cleared; it was {was}", json=json)


class _Unfinished(Ledger):
    """A ledger that refuses to show a record whose key may have taken effect."""

    def show(self, key: str, *, whole: bool = False) -> tuple[Record, float]:
        record, now = super().show(key, whole=whole)
        is_unknown = next_step(record, now) is NextStep.UPGRADE
        if is_unknown or record.status == COMPLETED:
            why = NextStep.UPGRADE.value if is_unknown else "this key is completed"
            refuse(f"{quoted(key)}: {why}. {_ANYWAY}: its effect happens again at its next delivery", TROUBLE)
        return record, now


@contextmanager
def _refusing() -> Iterator[None]:
    """End the command if a worker holds the key, or a message would be lost."""
    try:
        yield
    except Busy as error:
        refuse(f"{error}. {_ANYWAY}: that worker's result will be refused", TROUBLE)
    except KeepsMessage as error:
        refuse(f"{error}. {_ANYWAY}. `onceward unpark KEY --to QUEUE` sends it again instead", TROUBLE)


def park(
    key: KeyArgument,
    reason: str = "parked by hand",
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Stop retrying a key until you unpark or clear it. If a worker has the key, it needs --yes.

    Options:
        reason (TEXT): The reason. Callers with this key get it in their error.
        yes: Do it even if a worker holds the key.
    """
    with looking_at(store) as ledger, _refusing():
        _tell(ledger.park(key, reason, live=yes), f"parked: {reason}", json=json)


def unpark(
    key: KeyArgument,
    to: str | None = None,
    seal: SealOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Let a parked key run again. Its attempts count from 0.

    If the key's record keeps the message of a queue, pass --to: this sends the message again. --seal opens a sealed
    message. After an interrupt or a kill, run the same command again: it continues.

    Options:
        to (QUEUE): The queue to send its message to: URL, ARN or name.
    """
    if seal is not None and to is None:
        refuse("--seal: it opens the message that --to sends, so give --to, too")
    with looking_at(store) as ledger:
        if to is None:
            _tell(ledger.unpark(key), "unparked; its next delivery runs", json=json)
            return
        pair = imported_seal(seal)
        with usage():
            _tell(*send_again(ledger, key, to, pair), json=json)


def settle(
    key: KeyArgument,
    result: str,
    retention: str | None = None,
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Complete a parked, released or lapsed key by hand, because its effect was made. Duplicates get this result.

    Ask the downstream first. The handler does not run, and its messages are not sent. If the result does not fit the
    handler's return annotation, duplicates get ResultUnavailable. Without --yes it only says what it would do.

    Options:
        result (JSON): What the handler would have returned; `null` for nothing.
        retention (DURATION): How long the record answers duplicates, as 30d, or `forever`. Default: the handler's
            retention, or 14d for a key that is parked or keeps its input.
        yes: Do it, and lose a message that the key's record keeps.
    """
    try:
        value = read_json(result)
    except NotJson as error:
        refuse(f"--result {result}: {error}")
    keep = math.inf if retention == "forever" else seconds("--retention", retention)
    with looking_at(store) as ledger, usage():
        if not yes:
            seen, now = ledger.show(key)
            if (step := next_step(seen, now)) not in UNSETTLED:
                refuse(f"{quoted(key)}: {step.value}, so it cannot be settled", TROUBLE)
            loses = "" if message_in(seen) is None else " The message that it keeps is lost"
            then = f"duplicates get {line(result)}, and the handler never runs for it.{loses}"
            refuse(f"{quoted(key)}: it is {seen.status}. {_ANYWAY}: {then}", TROUBLE)
        record = ledger.settle(key, value, retention=keep, message=True)
        _tell(record, f"completed by hand; duplicates get {record.result}", json=json)


def retry(
    key: KeyArgument,
    step: Annotated[str, Option("--from")],
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Forget a step of a key, and the steps after it: the next delivery runs these steps again. It also works for a completed key.

    Steps that were recorded earlier are kept. A downstream that got claim.key(STEP) gets the same key again, and can
    deduplicate.

    Options:
        step (STEP): The first step to make again, as `onceward show` prints it.
    """
    with looking_at(store) as ledger:
        _tell(ledger.retry(key, step), f"its next delivery begins at the step {step}", json=json)


def _tell(record: Record | Damaged, text: str, *, json: bool) -> None:
    if json and isinstance(record, Damaged):
        record = record._replace(seen=None)  # only its store understands it
    typer.echo(as_json(record) if json else f"{quoted(record.key)}: {line(text)}")
