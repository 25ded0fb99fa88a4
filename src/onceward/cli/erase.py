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
    """Erase what the ledger holds of one person. Their keys go on answering duplicates, and no effect is made again.

    SUBJECT is PATH=VALUE, as in customer.email=ann@example.com. A record is the person's if its result, or the result of one of its steps, has
    VALUE at PATH. `*` is any name, and lists are looked into. The body of an HTTP response is looked into, too: body.customer.email=...

    With --blank, the values at these paths and at PATH go: a text becomes "(erased)", anything else null. Without it, the whole results go, and
    duplicates get ResultUnavailable.

    The whole ledger is read. Records that are not completed, or have unsent messages, are left: they are listed with what to do, and the
    exit status is 1. Keys, fingerprints, and logs of yours stay as they are. The audit says who erased at which paths, and not the value.

    Options:
        subject (SUBJECT): PATH=VALUE of whose records to erase.
        blank (PATH): What to erase; several times, if needed.
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
        try:
            erasing = ledger.erase(path, value, who=_user(), blank=blank or [], prefix=prefix, seal=pair)
        except ValueError as error:
            refuse(str(error), USAGE)
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
