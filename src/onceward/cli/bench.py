"""The command that times a ledger: bench."""

import sys
from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.bill.charges import charge
from onceward.bill.pace import BATCH, Pace, Timed, verdicts
from onceward.bill.prices import StorePrices, prices
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    INTERRUPTED,
    TROUBLE,
    USAGE,
    JsonOption,
    StoreOption,
    opened,
    refuse,
    said,
)
from onceward.errors import OncewardError
from onceward.stores.capabilities import COSTS, FOUND
from onceward.stores.costs import Workload

_HEAD = ("", "times", "requests", "p50", "p90", "p99", "most")

SecondsOption = Annotated[float, Option(min=1, max=600, metavar="S", help="How long to measure.")]
RateOption = Annotated[float, Option(min=1, max=10_000, metavar="N", help="How many keys a second, at most.")]
YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask before it writes.")]


def bench(
    store: StoreOption = DEFAULT_STORE,
    seconds: SecondsOption = 20.0,
    rate: RateOption = 50.0,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Time claims, completions, duplicates and batches on your ledger and network, and compare with the docs.

    It says what it will write, and asks. Its keys have a prefix of their own. It deletes them at the end, and touches no other.
    The exit status is 0 if all is as in the docs, 1 if something is not, and 2 if it did not run.
    """
    once = opened(store)
    try:
        found = FOUND.of(once.store)
        if found is not None and not found():
            refuse(f"there is no ledger at {once.store.url}: make it with `onceward init`", USAGE)
        pace = Pace(once, seconds, rate)
        _ask(pace, once.store.url, seconds, rate, yes=yes)
        timed, gone = _run(pace)
    except OncewardError as error:
        refuse(said(error), USAGE)
    except TypeError as error:
        refuse(str(error), USAGE)
    finally:
        once.close()
    told = verdicts(timed)
    if json:
        rows = [one._asdict() for one in timed]
        verdict = [{"met": met, "says": says} for met, says in told]
        answer = {"store": once.store.url, "timed": rows, "verdicts": verdict, "errors": pace.errors}
        typer.echo(terminal.json({**answer, "deleted": gone, "left": pace.left}))
    else:
        lines = [
            *_table(timed),
            "",
            *(f"{'as in the docs' if met else 'NOT AS IN THE DOCS'}: {says}" for met, says in told),
        ]
        typer.echo("\n".join(map(terminal.line, [*lines, f"{gone} records deleted", *_trouble(pace)])))
    raise typer.Exit(0 if timed and all(met for met, _ in told) and not pace.errors and not pace.left else TROUBLE)


def _ask(pace: Pace, url: str, seconds: float, rate: float, *, yes: bool) -> None:
    """Say what will be written, and end the command unless somebody agrees."""
    says = (
        f"{url}: writes up to {pace.records} records with keys {pace.prefix}:..., at most {rate:g} a second for {seconds:g} s, "
        f"and deletes them{_price(pace)}"
    )
    typer.echo(terminal.line(says), err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        refuse("nothing was written: pass --yes to agree", USAGE)
    if not typer.confirm("Go on?", err=True):
        refuse("nothing was written", USAGE)


def _price(pace: Pace) -> str:
    ways = COSTS.of(pace.store)
    listed = prices().stores.get(pace.store.url.partition(":")[0], StorePrices())
    if ways is None or not listed.million_writes:
        return ""
    # As a day's messages: a claim and a completion each, as many duplicates, and the deletes.
    way = ways(Workload(pace.records * 2, 0.5))[0]
    units = way.writes + pace.records
    price = charge(way._replace(writes=units, stored=0), listed, "on-demand", 1).price / (365 / 12)
    return f". That is about {units:,.0f} write units, {price:.4f} USD on demand"


def _run(pace: Pace) -> tuple[list[Timed], int]:
    """Measure, and delete what was written, also after an interrupt."""
    try:
        timed = pace.run()
    except KeyboardInterrupt:
        typer.echo(f"onceward: stopped; {pace.clean()} records deleted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BaseException:
        pace.clean()
        raise
    return timed, pace.clean()


def _table(timed: list[Timed]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    for one in timed:
        name = f"{one.name} of {BATCH}" if one.name == "batch" else one.name
        percentiles = [f"{took * 1000:.2f} ms" for took in one.seconds]
        rows.append((name, str(one.times), f"{one.requests:.2f}", *percentiles))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _trouble(pace: Pace) -> list[str]:
    failed = [f"{count} times: {error}" for error, count in pace.errors.most_common()]
    return failed + [f"not deleted: {key}; it expires within an hour" for key in pace.left]
