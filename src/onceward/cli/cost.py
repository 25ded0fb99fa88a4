"""The command that says what a ledger costs: cost."""

from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from typer import Option

from onceward import terminal
from onceward.bill.charges import DAYS, FULL, Charge, charge
from onceward.bill.measured import measured
from onceward.bill.prices import PACKAGED, Prices, StorePrices, prices
from onceward.cli.durations import seconds
from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, JsonOption, StoreOption, opened, refuse, said
from onceward.errors import OncewardError
from onceward.results.step_entries import LONGEST
from onceward.stores.capabilities import COSTS
from onceward.stores.costs import Workload

_USUAL = Workload(1_000_000)

MessagesOption = Annotated[float, Option(min=1, max=10**12, metavar="N", help="Deliveries a day, duplicates included.")]
DuplicatesOption = Annotated[
    float, Option(min=0, max=100, metavar="PERCENT", help="How many of the deliveries are duplicates.")
]
ResultOption = Annotated[int, Option(min=0, metavar="BYTES", help="The size of an encoded result.")]
KeyOption = Annotated[int, Option("--key-size", min=1, metavar="BYTES", help="The size of a key, with its namespace.")]
RetentionOption = Annotated[str, Option(metavar="TIME", help="The guard's retention=, as in 14d.")]
StepsOption = Annotated[int, Option(min=0, max=100, metavar="N", help="Recorded steps of the handler.")]
BatchOption = Annotated[int, Option(min=1, metavar="N", help="Messages in a batch.")]
RememberedOption = Annotated[
    float,
    Option(min=0, max=100, metavar="PERCENT", help="How many duplicates come to a process whose cache= knows them."),
]
ModeOption = Annotated[
    Literal["on-demand", "provisioned"], Option(help="DynamoDB: how the table's capacity is charged.")
]
PeakOption = Annotated[
    float,
    Option(
        min=1, max=10**6, metavar="N", help="With --mode provisioned: the busiest minute, as a multiple of the mean."
    ),
]
PricesOption = Annotated[
    Path | None,
    Option(
        "--prices",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        show_default=False,
        help="A list of prices of yours, as JSON.",
    ),
]
MeasureOption = Annotated[
    str | None,
    Option(
        metavar="TIME",
        show_default=False,
        help="Take the rate and the sizes from the ledger itself, over this time. It reads some 200 records.",
    ),
]


def cost(
    store: StoreOption = DEFAULT_STORE,
    messages: MessagesOption = _USUAL.messages,
    duplicates: DuplicatesOption = 5.0,
    result: ResultOption = _USUAL.result,
    key: KeyOption = _USUAL.key,
    retention: RetentionOption = f"{_USUAL.retention / 86400:.0f}d",
    steps: StepsOption = 3,
    batch: BatchOption = _USUAL.batch,
    remembered: RememberedOption = _USUAL.remembered * 100,
    mode: ModeOption = "on-demand",
    peak: PeakOption = 2.0,
    prices_: PricesOption = None,
    measure: MeasureOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a ledger asks for and costs a month: plain, with each feature, and beside other libraries.

    Without --measure nothing is sent, and the ledger need not exist. It counts the ledger alone, and not your effects.
    """
    try:
        listed = prices(prices_ or PACKAGED)
    except ValueError as error:
        refuse(str(error), USAGE)
    kept = cast("float", seconds("--retention", retention))
    load = Workload(messages, duplicates / 100, result, key, kept, steps, batch, remembered / 100)
    span, unknown = seconds("--measure", measure), list[str]()
    once = opened(store)
    scheme = once.store.url.partition(":")[0]
    try:
        ways = COSTS.needed(once.store)
        if span is not None:
            load, unknown = measured(once.store, span, load)
        load, limits = _possible(load, once.store.max_result)
        charges = [charge(way, _listed(listed, scheme), mode, peak) for way in ways(load)]
    except OncewardError as error:
        refuse(said(error), TROUBLE)
    except TypeError as error:
        refuse(str(error), USAGE)
    finally:
        once.close()
    if json:
        told = {"store": once.store.url, "workload": load._asdict(), "unknown": unknown, "limits": limits}
        told["prices"] = listed.as_of
        rows = [{**one._asdict(), "way": one.way.name} for one in charges]
        typer.echo(terminal.json({**told, "currency": listed.currency, "ways": rows}))
    else:
        lines = [
            *_head(once.store.url, load, listed, mode, peak),
            "",
            *_table(charges, listed),
            *limits,
            *_notes(charges, unknown, is_priced=scheme in listed.stores),
        ]
        typer.echo("\n".join(map(terminal.line, lines)))


def _possible(load: Workload, most: int) -> tuple[Workload, list[str]]:
    """Return the workload without what a ledger refuses, and what that is."""
    limits = []
    if load.steps * load.result > LONGEST:
        limits.append(
            f"no row for {load.steps} steps: results that do not fit into {LONGEST} bytes get records of their own"
        )
        load = load._replace(steps=0)
    if load.result > most:
        limits.append(f"results of more than {most} bytes are not recorded here, unless max_result= is larger")
    return load, limits


def _listed(listed: Prices, scheme: str) -> StorePrices:
    return listed.stores.get(scheme, StorePrices())


def _head(url: str, load: Workload, listed: Prices, mode: str, peak: float) -> list[str]:
    how = f", provisioned for {peak:g} times the mean at {FULL:.0%}" if mode == "provisioned" else ""
    what = f"{load.messages:,.0f} messages a day, {load.duplicates:.1%} of them duplicates"
    return [
        f"{url}{how}: {what}, results of {load.result} bytes, kept for {load.retention / 86400:g} days",
        f"prices of {listed.as_of}: {listed.source}",
    ]


def _table(charges: list[Charge], listed: Prices) -> list[str]:
    units = any(one.writes or one.reads for one in charges)
    head = [
        "a month",
        "requests",
        *(["write units", "read units"] if units else ["commits"]),
        "stored",
        listed.currency,
    ]
    rows = [head]
    for one in charges:
        counted = [_short(one.writes), _short(one.reads)] if units else [_short(one.way.commits * DAYS)]
        rows.append([one.way.name, _short(one.requests), *counted, f"{one.gb:.1f} GB", f"{one.price:,.2f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _short(number: float) -> str:
    """Return a number in thousands or millions."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def _notes(charges: list[Charge], unknown: list[str], *, is_priced: bool) -> list[str]:
    notes = [f"not measured: {one}" for one in unknown]
    if not is_priced:
        notes.append(
            "no price is listed for this kind of ledger: what it stores is a part of a server that you pay for"
        )
    elif any(one.way.commits for one in charges):
        notes.append(
            "only storage is priced: the server must make these commits durable, and `onceward bench` tells how fast"
        )
    return notes
