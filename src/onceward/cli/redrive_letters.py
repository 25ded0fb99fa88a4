"""``onceward redrive kafka:TOPIC`` and ``amqp:QUEUE``: moves dead letters that carry their keys."""

from collections import Counter
from collections.abc import Callable, Generator
from typing import Protocol

import typer

from onceward import terminal
from onceward.cli.ledgers import TROUBLE, USAGE, looking_at, refuse
from onceward.consumers.letters import DeadLetter
from onceward.consumers.redriving import InDoubt, OnCompleted
from onceward.consumers.stop import Stop
from onceward.once import Once
from onceward.terminal import line, quoted

PREFIXES = ("kafka:", "amqp:", "amqps:")
_STAYS = ("refused", "failed")


class Redriving(Protocol):
    """One move of dead letters."""

    def run(self, stopped: Callable[[], bool]) -> Generator[DeadLetter, None, None]:
        """Yield the outcome of each letter."""


def redrive_letters(
    address: str,
    store: str,
    *,
    group: str | None,
    completed: OnCompleted,
    in_doubt: InDoubt,
    limit: int | None,
    dry_run: bool,
    json: bool,
) -> int:
    """Move the letters that are there now, and return the exit status."""
    stop = Stop()
    stop.listen()
    counts: Counter[str] = Counter()
    with looking_at(store) as ledger:
        try:
            run: Redriving
            if address.startswith("kafka:"):
                from onceward.kafka import KafkaRedrive  # needs aiokafka, which SQS does not

                topic = address.removeprefix("kafka:")
                run = KafkaRedrive(
                    Once(ledger.store),
                    topic,
                    group=group,
                    completed=completed,
                    in_doubt=in_doubt,
                    limit=limit,
                    dry_run=dry_run,
                )
            else:
                from onceward.rabbitmq import RabbitRedrive  # needs aio-pika
                from onceward.rabbitmq.connection import read_address

                if group is not None:
                    refuse(f"{address}: --name is for topics of Kafka: leave it out", USAGE)
                place = read_address(address)
                run = RabbitRedrive(
                    Once(ledger.store),
                    place.key,
                    url=place.url,
                    completed=completed,
                    in_doubt=in_doubt,
                    limit=limit,
                    dry_run=dry_run,
                )
        except (ValueError, ImportError) as error:
            refuse(str(error), USAGE)
        for letter in run.run(lambda: stop.asked):
            counts[letter.outcome] += 1
            if json:
                typer.echo(terminal.json(letter._asdict()))
            else:
                key = "" if letter.key is None else f"{quoted(letter.key)}: "
                would = "would be " if dry_run and letter.outcome not in _STAYS else ""
                typer.echo(line(f"{would}{letter.outcome:<8} {letter.place} {key}{letter.reason}"))
    if json:
        typer.echo(terminal.json({"summary": {**counts, "dry_run": dry_run}}))
    told = ", ".join(f"{outcome} {count}" for outcome, count in counts.items()) or "there are no dead letters"
    typer.echo(f"onceward: {'a dry run: nothing was changed; ' if dry_run else ''}{told}", err=True)
    return TROUBLE if stop.asked or any(counts[outcome] for outcome in _STAYS) else 0
