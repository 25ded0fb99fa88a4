"""``onceward erase``: take what the ledger holds of one person out of it."""

import os
from getpass import getuser
from typing import Annotated

import typer
from typer import Argument

from onceward import terminal
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    TROUBLE,
    USAGE,
    JsonOption,
    SealOption,
    StoreOption,
    import_here,
    imported_seal,
    looking_at,
    refuse,
    usage,
)
from onceward.cli.scans import PrefixOption, in_utf_8


def erase(
    subject: Annotated[str, Argument()],
    *,
    blank: list[str] | None = None,
    store: StoreOption = DEFAULT_STORE,
    prefix: PrefixOption = "",
    seal: SealOption = None,
    json: JsonOption = False,
) -> None:
    """Erase what the ledger holds of one person. Their keys still answer duplicates, and no effect happens again.

    SUBJECT is PATH=VALUE, as in customer.email=ann@example.com. A record is the person's if its result, or the result of one of its steps, has
    VALUE at PATH. `*` is any name. Lists, and the body of an HTTP response, are searched, too: body.customer.email=...

    With --blank, only the values at these paths and at PATH are erased: a text becomes "(erased)", anything else null. Without it,
    whole results are erased, and duplicates get ResultUnavailable.

    The whole ledger is read. Records that are not completed, or have unsent messages, are kept and listed with what to do. The exit
    status is then 1. Keys, fingerprints and your logs stay as they are. The audit says who erased which paths, without the value.

    Options:
        subject (SUBJECT): The person, as PATH=VALUE.
        blank (PATH): A path to erase. Can be repeated.
    """
    path, equals, value = subject.partition("=")
    if not equals or not value:
        refuse("SUBJECT: give PATH=VALUE, as in customer.email=ann@example.com", USAGE)
    in_utf_8("SUBJECT", subject)
    in_utf_8("--prefix", prefix)
    if seal is not None:
        import_here()
    pair, done, left = imported_seal(seal), 0, 0
    with looking_at(store) as ledger:
        with usage():
            erasing = ledger.erase(path, value, who=_user(), blank=blank or [], prefix=prefix, seal=pair)
        for one in erasing:
            done, left = done + (one.left is None), left + (one.left is not None)
            shown = terminal.json(one._asdict()) if json else f"{terminal.quoted(one.key)}: {one.left or 'erased'}"
            typer.echo(shown)
    if not json:
        typer.echo(f"{done} record(s) erased, {left} left", err=True)
    if left:
        raise typer.Exit(TROUBLE)


def _user() -> str:
    """Return who runs this; a container's user can have no name."""
    try:
        return getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"
