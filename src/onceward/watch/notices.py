"""Notices of incidents, and where they go: a webhook, a command, or a function of yours."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

from onceward import terminal
from onceward.core.urls import shown_url
from onceward.keys.ledger_keys import derived_key
from onceward.outbox.http_target import HttpTarget
from onceward.outbox.targets import OutboxMessage
from onceward.watch.incidents import Incident

Event = Literal["began", "over"]
Tell = Callable[["Notice"], object]
MOST: Final = 50  # incidents of a notice
COMMAND_TIME: Final = 20.0  # seconds that a command may take
_NAMED: Final = 3  # keys that a notice's text names


class Notice(NamedTuple):
    """What is told at once: incidents of one kind that begin, or are over.

    Attributes:
        event: "began" or "over".
        kind: as an incident's.
        incidents: at most 50.
        ledger: where they are.
    """

    event: Event
    kind: str
    incidents: Sequence[Incident]
    ledger: str

    @property
    def key(self) -> str:
        """The same for the same incidents, to deduplicate by. One that comes back is another."""
        return derived_key("onceward.watch", (self.event, *sorted(f"{one.id} {one.since}" for one in self.incidents)))

    @property
    def text(self) -> str:
        """It in one line, harmless to a terminal."""
        named = "; ".join(f"{one.subject}: {one.says}" for one in self.incidents[:_NAMED])
        more = len(self.incidents) - _NAMED
        others = f"; and {more} more" if more > 0 else ""
        return terminal.line(f"{self.kind} {self.event}: {named}{others} ({self.ledger})")

    @property
    def body(self) -> str:
        """It as JSON."""
        listed = [{"id": one.id, "subject": one.subject, "says": one.says} for one in self.incidents]
        told = {"event": self.event, "kind": self.kind, "text": self.text, "ledger": self.ledger, "incidents": listed}
        return terminal.json(told)


def notices_of(event: Event, incidents: Iterable[Incident], ledger: str) -> Iterator[Notice]:
    """Yield notices of incidents, by their kind."""
    kinds: dict[str, list[Incident]] = {}
    for one in incidents:
        kinds.setdefault(one.kind, []).append(one)
    for kind, found in kinds.items():
        rest = iter(found)
        while part := list(islice(rest, MOST)):
            yield Notice(event, kind, part, ledger)


def webhook(url: str) -> Tell:
    """Return what sends a notice to an endpoint: a POST of JSON with an Idempotency-Key. It raises if that is not taken.

    Raises:
        ValueError: it is not a URL of HTTP.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{shown_url(url)!r}: give an https:// or http:// URL")
    target = HttpTarget(url)

    def tell(notice: Notice) -> None:
        (error,) = target.send([OutboxMessage(notice.key, notice.body)])
        if error is not None:
            raise error

    return tell


def command(argv: Sequence[str]) -> Tell:
    """Return what runs a command for a notice, without a shell: its JSON is the standard input.

    ONCEWARD_EVENT, ONCEWARD_KIND and ONCEWARD_TEXT are in its environment. It raises if the command fails.
    """

    def tell(notice: Notice) -> None:
        named = {"ONCEWARD_EVENT": notice.event, "ONCEWARD_KIND": notice.kind, "ONCEWARD_TEXT": notice.text}
        subprocess.run(list(argv), input=notice.body.encode(), env=os.environ | named, check=True, timeout=COMMAND_TIME)

    return tell
