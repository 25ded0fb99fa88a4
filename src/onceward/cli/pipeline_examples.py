"""``onceward test``: run the examples in a pipeline's file."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from onceward.cli.ledgers import USAGE, refuse
from onceward.cli.pipeline_run import WRONG, FileArgument, checked
from onceward.terminal import json, line

HELP = r"""
Run the examples in a pipeline's file, on a ledger in memory. No effect is made, and nothing is sent.

Each example gives a message, what the effects return, and what must come of it: what each sink gets, and how often each effect is
made. The message then comes again as a duplicate, which must have no effect. After that it is killed at each point of its way, and
comes again: what was recorded must not be made again, and the output must be the same.

Exit status: [bold]0[/bold] all is as the examples say; [bold]1[/bold] something is not; [bold]2[/bold] usage.
"""


def examples(
    file: FileArgument,
    *,
    only: Annotated[
        str | None,
        Option("--only", "-k", metavar="TEXT", help="Only examples with this text in their name.", show_default=False),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Write one JSON object per example.")] = False,
) -> None:
    """Run the examples. HELP lists the exit statuses."""
    pipeline = checked(file, "memory:")
    from onceward.pipelines.examples import run_examples

    logging.getLogger("onceward").setLevel(logging.CRITICAL + 1)  # the kills are no news

    if not pipeline.model.examples:
        refuse(f"{file} has no examples: give some under examples:", USAGE)
    results = run_examples(Path(file), pipeline, only)
    for one in results:
        if as_json:
            typer.echo(json({"example": one.name, "ok": not one.faults, "kills": one.kills, "faults": one.faults}))
            continue
        typer.echo(line(f"{'FAILED' if one.faults else 'ok'}  {one.name} ({one.kills} kills)"))
        for fault in one.faults:
            typer.echo(line(f"        {fault}"))
    wrong = sum(bool(one.faults) for one in results)
    if not as_json:
        typer.echo(f"{len(results)} examples, {wrong} failed", err=True)
    raise typer.Exit(WRONG if wrong or not results else 0)
