"""The command that moves messages out of a dead-letter queue: redrive."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from onceward import terminal
from onceward.aws.dead_letters.redrive import Fate, Redrive
from onceward.aws.sqs.queue import Queue
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    TROUBLE,
    JsonOption,
    StoreOption,
    YesOption,
    looking_at,
    refuse,
    refuse_login,
    say,
    usage,
)
from onceward.consumers.stop import Stop
from onceward.core.urls import shown_url
from onceward.errors import OncewardError
from onceward.once import Once
from onceward.terminal import line, quoted

if TYPE_CHECKING:
    from onceward.consumers.redriving import DeadLetter, LetterRedrive

_PREFIXES = ("kafka:", "amqp:", "amqps:")
_OUTCOMES = ("moved", "dropped", "refused", "failed")
_WOULD = {"moved": "would move", "dropped": "would drop"}  # in a dry run


def redrive(
    dlq: Annotated[str, Argument()],
    to: str | None = None,
    *,
    name: str | None = None,
    key: str | None = None,
    unwrap: Literal["sns"] | None = None,
    fingerprint: str | None = None,
    completed: Literal["keep", "drop"] = "keep",
    in_doubt: Literal["keep", "rerun"] = "keep",
    dry_run: bool = False,
    limit: Annotated[int | None, Option(min=1)] = None,
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Move the messages of a dead-letter queue back. The ledger decides which messages move. Their parked keys are unparked.

    With kafka:TOPIC, the dead letters of a topic go to its retry topic. --name then selects the letters of one consumer
    group. With amqp:QUEUE, the dead letters in QUEUE.onceward-dead go to QUEUE.

    A message stays if its key is completed, its effect may have happened, or a worker has the key. After an interrupt
    or a kill, run the same command again: it continues. The exit status is 0 if all messages have left
    the queue, and 1 if some had to stay or could not be received.

    Options:
        dlq (DLQ): The dead-letter queue: its URL, ARN or name; kafka: and a topic; or amqp: and a queue.
        to (QUEUE): Where the messages go: URL, ARN or name. Dead letters of Kafka always go to their retry topic.
        name (NAMESPACE): What the consumer's keys start with in the ledger: its name=, or its handler's module and name, in
            Lambda after the Lambda function's name. Queues of SQS need it.
        key (JMESPATH): The consumer's key=, with body instead of its parameter. By default: its default, the message id.
        unwrap: The consumer's unwrap=: the messages are in SNS's envelopes.
        fingerprint (JMESPATH): The consumer's fingerprint=, with body instead of its parameter; body if it is True. By
            default: none.
        completed: What to do with a message whose key is completed: keep it; or drop it, because it has taken effect.
        in_doubt: What to do with a message whose key is parked, and whose effect may have happened: keep it, or rerun
            it. Ask the downstream first. A lapsed key is left to its consumer's on_lapse, or runs again with rerun.
        dry_run: Show what would be done, and change nothing. SQS still counts a receive.
        limit (N): Stop after N messages have left the queue; in Kafka, after N are decided about. By default: all.
        yes: With --completed drop: delete such messages.
    """
    options: Any = {"completed": completed, "in_doubt": in_doubt, "limit": limit, "dry_run": dry_run}
    for place in (dlq, to or ""):
        refuse_login(place)

    def ask(place: str) -> None:
        if completed != "keep" and not (dry_run or yes):
            refuse(f"messages of {place} whose keys are completed are deleted. Pass --yes if you want that")

    if dlq.startswith(_PREFIXES):
        if to or key or unwrap or fingerprint:
            refuse(f"{shown_url(dlq)}: its letters carry their keys, and where they go: leave --to and the others out")
        with looking_at(store) as ledger:
            letters = _letters(dlq, Once(ledger.store), name, options)
            ask(shown_url(dlq))
            raise typer.Exit(_moved(letters.run, {}, dry_run=dry_run, json=json))
    if to is None or name is None:
        refuse("give --to, the queue where the messages go, and --name, the start of the consumer's keys")
    with looking_at(store) as ledger:
        with usage():
            source, target = Queue(dlq), Queue(to)
            run = Redrive(
                Once(ledger.store),
                source,
                target,
                name=name,
                key=key,
                unwrap=unwrap,
                fingerprint=fingerprint,
                **options,
            )
            waiting = run.waiting()
        try:
            ask(source.name)
            for note in waiting.notes:
                say(note)
            status = _moved(run.run, {"hidden": waiting.hidden, "name": name}, dry_run=dry_run, json=json)
            if run.unseen:
                say(
                    f"about {run.unseen} message(s) of {source.name} could not be received: others have them, so run this again later; or they "
                    "come after one of their group that stays"
                )
                status = TROUBLE
        finally:
            source.close()
            target.close()
    raise typer.Exit(status)


def _letters(address: str, once: Once, group: str | None, options: Any) -> "LetterRedrive":
    """Return the move of dead letters that carry their keys."""
    with usage():
        if address.startswith("kafka:"):
            from onceward.kafka import KafkaRedrive  # needs aiokafka, which SQS does not

            return KafkaRedrive(once, address.removeprefix("kafka:"), group=group, **options)
        from onceward.rabbitmq import RabbitRedrive  # needs aio-pika
        from onceward.rabbitmq.connection import read_address

        if group is not None:
            refuse(f"{shown_url(address)}: --name is for topics of Kafka: leave it out")
        place = read_address(address)
        return RabbitRedrive(once, place.key, url=place.url, **options)


def _moved(
    run: "Callable[[Callable[[], bool]], Generator[Fate | DeadLetter, None, None]]",
    more: dict[str, object],
    *,
    dry_run: bool,
    json: bool,
) -> int:
    """Move the messages, tell of each, and return the exit status. ``more`` is said of the run to programs."""
    stop, counts, without = Stop(), dict.fromkeys(_OUTCOMES, 0), 0
    stop.listen()
    trouble: OncewardError | None = None
    try:
        with closing(run(lambda: stop.asked)) as fates:
            for fate in fates:
                counts[fate.outcome] += 1
                without += isinstance(fate, Fate) and fate.outcome == "moved" and fate.record is None
                typer.echo(_as_json(fate) if json else _line(fate, _WOULD if dry_run else {}))
    except OncewardError as error:
        trouble = error
    if json:
        typer.echo(terminal.json({"summary": {**counts, **more, "dry_run": dry_run}}))
    summary = ", ".join(f"{_WOULD.get(one, one) if dry_run else one} {count}" for one, count in counts.items() if count)
    say(
        f"{'a dry run: nothing was changed; ' if dry_run else ''}{summary or 'no message could be received'}"
        f"{'; stopped' if stop.asked else ''}"
    )
    if without and without == counts["moved"]:
        say(
            f"no message that was moved has a record under {more['name']}. If they should have one, compare --name, "
            "--key and --store with the consumer's"
        )
    if trouble is not None:
        raise trouble
    return TROUBLE if counts["refused"] or counts["failed"] or stop.asked else 0


def _line(fate: "Fate | DeadLetter", would: Mapping[str, str]) -> str:
    place, error = (fate.message.id, "") if isinstance(fate, Fate) else (fate.place, "")
    if isinstance(fate, Fate) and fate.record is not None and fate.record.error:
        error = f"; last error: {fate.record.error}"
    key = "" if fate.key is None else f"{quoted(fate.key)}: "
    return line(f"{'would be ' if fate.outcome in would else ''}{fate.outcome:<8} {place} {key}{fate.reason}{error}")


def _as_json(fate: "Fate | DeadLetter") -> str:
    if not isinstance(fate, Fate):
        return terminal.json(fate._asdict())
    fields = {
        "message": fate.message.id,
        "outcome": fate.outcome,
        "reason": fate.reason,
        "key": fate.key,
        "record": None if fate.record is None else fate.record._asdict(),
    }
    return terminal.json(fields)
