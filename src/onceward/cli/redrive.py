"""The command that moves messages out of a dead-letter queue: redrive."""

import sys
from contextlib import closing
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from onceward import terminal
from onceward.aws.dead_letters.redrive import Backlog, Fate, Redrive, namespaces
from onceward.aws.sqs.queue import Queue
from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, JsonOption, StoreOption, looking_at, refuse
from onceward.cli.progress import shown
from onceward.cli.redrive_letters import PREFIXES, redrive_letters
from onceward.consumers.stop import Stop
from onceward.errors import OncewardError
from onceward.once import Once
from onceward.stores.ledger import Ledger
from onceward.terminal import line, quoted

_OUTCOMES = ("moved", "finished", "dropped", "refused", "filtered", "failed")
_WOULD = {"moved": "would move", "finished": "would finish", "dropped": "would drop"}  # in a dry run

DlqArgument = Annotated[
    str,
    Argument(
        metavar="DLQ", help="The dead-letter queue: its URL, ARN or name; kafka: and a topic; or amqp: and a queue."
    ),
]
ToOption = Annotated[
    str | None,
    Option(metavar="QUEUE", help="Where its messages go: URL, ARN or name. Letters of Kafka go to their retry topic."),
]
NameOption = Annotated[
    str | None,
    Option(
        metavar="NAMESPACE",
        help="What the consumer's keys start with in the ledger: its name=, or its handler's module and name.",
        show_default="the only one in the ledger",
    ),
]
KeyOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="The consumer's key=, with body instead of its parameter.",
        show_default="its default, the message id",
    ),
]
WhereOption = Annotated[
    str | None,
    Option(metavar="JMESPATH", help="Only messages for which this is true, such as body.amount.", show_default="all"),
]
UnwrapOption = Annotated[
    Literal["sns"] | None, Option(help="The consumer's unwrap=: the messages are in SNS's envelopes.")
]
FingerprintOption = Annotated[
    str | None,
    Option(
        metavar="JMESPATH",
        help="The consumer's fingerprint=, with body instead of its parameter; body if it is True.",
        show_default="none",
    ),
]
CompletedOption = Annotated[
    Literal["keep", "drop", "rerun"],
    Option(
        help="What to do with a message whose key is completed: keep it; drop it, because it has taken effect; or rerun it: clear "
        "its key and move it."
    ),
]
DoubtOption = Annotated[
    Literal["keep", "rerun"],
    Option(
        help="What to do with a message whose key is parked, and whose effect may be made: keep it, or rerun it. Ask the downstream "
        "first."
    ),
]
DryOption = Annotated[
    bool, Option("--dry-run", help="Show what would be done, and change nothing. SQS still counts a receive.")
]
LimitOption = Annotated[
    int | None, Option(min=1, metavar="N", help="Stop after N messages have left the queue.", show_default="all")
]
VisibilityOption = Annotated[
    int, Option(min=1, max=43200, metavar="S", help="Seconds that messages stay hidden if this is killed.")
]
YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask before completed messages are dropped or rerun.")]


def redrive(
    dlq: DlqArgument,
    to: ToOption = None,
    *,
    name: NameOption = None,
    key: KeyOption = None,
    where: WhereOption = None,
    unwrap: UnwrapOption = None,
    fingerprint: FingerprintOption = None,
    completed: CompletedOption = "keep",
    in_doubt: DoubtOption = "keep",
    dry_run: DryOption = False,
    limit: LimitOption = None,
    visibility: VisibilityOption = 60,
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Move the messages of a dead-letter queue back. The ledger decides what becomes of each: parked keys are unparked.

    With kafka:TOPIC, the dead letters of a topic go to its retry topic; --name then takes those of one consumer group. With amqp:QUEUE,
    those of a queue of RabbitMQ, in QUEUE.onceward-dead, go to that queue.

    A message stays if its key is completed, its effect may be made, or a worker holds it. After an interrupt or a kill, run the same command again: it
    continues. The exit status is 0 when only messages that --where excludes are left, and 1 when others had to stay.
    """
    if dlq.startswith(PREFIXES):
        if to or key or where or unwrap or fingerprint or completed == "rerun":
            refuse(
                f"{dlq}: its letters carry their keys, and where they go: leave --to and the others out",
                USAGE,
            )
        status = redrive_letters(
            dlq,
            store,
            group=name,
            completed=completed,
            in_doubt=in_doubt,
            limit=limit,
            dry_run=dry_run,
            json=json,
        )
        raise typer.Exit(status)
    if to is None:
        refuse("give --to, the queue where the messages go", USAGE)
    with looking_at(store) as ledger:
        try:
            source, target = Queue(dlq), Queue(to)
            found = _namespace(ledger, store) if name is None else name
            run = Redrive(
                Once(ledger.store),
                source,
                target,
                name=found,
                key=key,
                where=where,
                unwrap=unwrap,
                fingerprint=fingerprint,
                completed=completed,
                in_doubt=in_doubt,
                visibility=visibility,
                limit=limit,
                dry_run=dry_run,
            )
            waiting = run.waiting()
        except (ValueError, TypeError) as error:
            refuse(str(error), USAGE)
        try:
            told = _Told(found, dry_run=dry_run, json=json)
            if completed != "keep" and not (dry_run or yes):
                _confirm(completed, source.name)
            status = told.all(run, waiting)
        finally:
            source.close()
            target.close()
    raise typer.Exit(status)


class _Told:
    """Shows what becomes of the messages, and counts."""

    def __init__(self, name: str, *, dry_run: bool, json: bool) -> None:
        self._name, self._dry_run, self._json = name, dry_run, json
        self._counts = dict.fromkeys(_OUTCOMES, 0)
        self._without = 0  # messages without a record

    def all(self, run: Redrive, waiting: Backlog) -> int:
        stop = Stop()
        stop.listen()
        shows = shown(waiting.visible)
        for note in waiting.notes:
            shows.say(f"onceward: {line(note)}\n")
        trouble: OncewardError | None = None
        shows.start()
        try:
            with closing(run.run(lambda: stop.asked)) as fates:
                for fate in fates:
                    self._counts[fate.outcome] += 1
                    self._without += fate.outcome == "moved" and fate.record is None
                    told = _as_json(fate) if self._json else self._line(fate)
                    shows.out([f"{told}\n".encode()])
                    shows.update(sum(self._counts.values()), self._summary())
        except OncewardError as error:
            trouble = error
        finally:
            shows.stop()
        if self._json:
            summary = {**self._counts, "hidden": waiting.hidden, "dry_run": self._dry_run, "name": self._name}
            typer.echo(terminal.json({"summary": summary}))
        typer.echo(f"onceward: {self._summary()}{'; stopped' if stop.asked else ''}", err=True)
        self._hint()
        if trouble is not None:
            raise trouble
        stays = self._counts["refused"] + self._counts["failed"]
        return TROUBLE if stays or stop.asked else 0

    def _line(self, fate: Fate) -> str:
        what = f"would be {fate.outcome}" if self._dry_run and fate.gone else fate.outcome
        record = fate.record
        error = "" if record is None or not record.error else f"; last error: {record.error}"
        key = "" if fate.key is None else f"{quoted(fate.key)}: "
        return line(f"{what:<8} {fate.message.id} {key}{fate.reason}{error}")

    def _summary(self) -> str:
        words = _WOULD if self._dry_run else {}
        told = ", ".join(f"{words.get(outcome, outcome)} {count}" for outcome, count in self._counts.items() if count)
        return f"{'a dry run: nothing was changed; ' if self._dry_run else ''}{told or 'no message could be received'}"

    def _hint(self) -> None:
        if self._without and self._without == self._counts["moved"]:
            typer.echo(
                f"onceward: no message that was moved has a record under {self._name}. If they should have one, compare --name, "
                "--key and --store with the consumer's",
                err=True,
            )


def _namespace(ledger: Ledger, url: str) -> str:
    names, whole = namespaces(ledger)
    if len(names) == 1 and whole:
        return names.pop()
    there = ", ".join(sorted(names)[:10]) or "none"
    raise ValueError(
        f"give --name, which the consumer's keys start with in {url}: its name=, or its handler's module and name. "
        f"{'There are' if whole else 'Among the first are'}: {there}"
    )


def _confirm(completed: str, dlq: str) -> None:
    what = "are deleted" if completed == "drop" else "run again"
    if not sys.stdin.isatty():
        refuse(f"messages of {dlq} whose keys are completed {what}. Pass --yes if you want that", USAGE)
    if not typer.confirm(f"Messages of {dlq} whose keys are completed {what}. Go on?", err=True):
        refuse("nothing was changed", TROUBLE)


def _as_json(fate: Fate) -> str:
    record = None if fate.record is None else fate.record._asdict()
    told = {
        "message": fate.message.id,
        "outcome": fate.outcome,
        "reason": fate.reason,
        "key": fate.key,
        "record": record,
    }
    return terminal.json(told)
