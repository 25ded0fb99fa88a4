"""``onceward run``, ``onceward vet`` and ``onceward test``: pipelines from a YAML file."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from onceward.batch.outcomes import BatchOutcome
from onceward.cli.ledgers import EmptyOption, JsonOption, LinesOption, NewOption, refuse
from onceward.cli.report import WorkReport
from onceward.cli.work import run_worker
from onceward.errors import ResultUnavailable
from onceward.once import Once
from onceward.pipelines.call import PipelineMessage
from onceward.pipelines.marks import Mistake
from onceward.pipelines.pipeline import Pipeline, PipelineRun, examine
from onceward.terminal import encoded, json, line

WRONG = 1


FileArgument = Annotated[str, Argument(metavar="FILE", help="The YAML file of the pipeline.")]


def run(
    file: FileArgument,
    *,
    store: str | None = None,
    until_empty: EmptyOption = False,
    dry_run: bool = False,
    new_only: NewOption = False,
    as_json: LinesOption = False,
) -> None:
    """Run a pipeline: each message of its source goes through its steps to its sinks once.

    FILE is the YAML file of the pipeline. It names the source, the ledger, the steps and the sinks. [bold]onceward vet
    FILE[/bold] finds mistakes in it, with line and column, and [bold]onceward test FILE[/bold] runs its examples.

    A run over files ends at their end. After ctrl-C, kill -9 or a reboot, run the same command again: it handles only
    the messages that are left. A message that failed is tried again by the next run. A run over a queue continues until
    you stop it, and failed messages come again by themselves. Several runs at once share the work.

    With --dry-run it only prints what each message would do. It makes no effect, sends nothing, and leaves the ledger
    unchanged.

    Exit status: [bold]0[/bold] stopped, or empty and all done; [bold]1[/bold] empty, but some failed, are parked or
    busy, or not all messages of claim.send are sent; [bold]2[/bold] usage; [bold]3[/bold] empty, and all but malformed
    messages are done; [bold]4[/bold] the queue or the ledger failed; [bold]130[/bold] interrupted while functions were
    running, also by sys.exit in one; [bold]141[/bold] the reader of the output is gone.

    Options:
        store (URL): Another ledger than the file's. Its relative path begins in the current folder.
        dry_run: Make no effect, and print what each message would do.
    """
    pipeline = checked(file, store, rehearsal=dry_run)
    if dry_run and not pipeline.source.ends:
        refuse("--dry-run takes no message from a queue: give messages under examples:, for `onceward test`")
    report = PipelineReport(as_json=as_json, new_only=new_only)
    if dry_run:
        pipeline.stand_in = DryRun(report)

    run_worker(
        pipeline.once,
        lambda: PipelineRun(pipeline, report.outcome),
        until_empty=until_empty or pipeline.source.ends,
        report=report,
        has_grace=pipeline.model.grace is not None,
    )


def vet(
    file: Annotated[str | None, Argument()] = None,
    *,
    schema: bool = False,
    as_json: JsonOption = False,
) -> None:
    """Check a pipeline before anything runs: each mistake has its line and column. Correct those it tells, and run it again.

    It checks the form, the expressions, the names, what steps import, and that all extras are installed. It makes no
    request. It also warns of effects that no guard protects.

    Exit status: [bold]0[/bold] no mistake; [bold]1[/bold] mistakes; [bold]2[/bold] usage.

    Options:
        file (FILE): The YAML file of the pipeline.
        schema: Print the JSON Schema of the file for editors.
    """
    if schema is (file is not None):
        refuse("give the file of a pipeline, or --schema")
    if file is None:
        from onceward.pipelines.reading import schema as described

        sys.stdout.write(described())
        return
    _, mistakes = _examined(file, None, None)
    for one in mistakes:
        if as_json:
            fields = {"line": one.place.line, "column": one.place.column, "warning": one.is_warning, "text": one.text}
            typer.echo(json(fields))
        else:
            typer.echo(_text(file, one))
    wrong = sum(not one.is_warning for one in mistakes)
    if not as_json:
        typer.echo(_sum(wrong, len(mistakes) - wrong), err=True)
    raise typer.Exit(WRONG if wrong else 0)


def examples(
    file: FileArgument,
    *,
    as_json: JsonOption = False,
) -> None:
    """Run the examples in a pipeline's file, on a ledger in memory. No effect is made, and nothing is sent.

    Each example has a message, the results of its effects, and what must happen: what each sink gets, and how often
    each effect is made. The message then comes again as a duplicate, which must have no effect. Then the run is killed
    at each point, and the message comes again: recorded effects must not happen again, and the output must be the same.

    Exit status: [bold]0[/bold] all examples hold; [bold]1[/bold] some do not; [bold]2[/bold] usage.
    """
    pipeline = checked(file, None, rehearsal=True)
    from onceward.pipelines.examples import run_examples

    logging.getLogger("onceward").setLevel(logging.CRITICAL + 1)  # the kills are no news

    if not pipeline.model.examples:
        refuse(f"{file} has no examples: give some under examples:")
    results = run_examples(Path(file), pipeline)
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
    raise typer.Exit(WRONG if wrong else 0)


class PipelineReport(WorkReport):
    """Prints what messages print, beside the figures. What functions print is no output of the pipeline."""

    has_output = True

    def __init__(self, *, as_json: bool, new_only: bool) -> None:
        super().__init__(as_json=as_json)
        self._new_only = new_only

    def outcome(self, outcome: BatchOutcome) -> None:
        super().outcome(outcome)
        with self.lock:
            self.missing += outcome.status == "replayed" and isinstance(outcome.error, ResultUnavailable)
        if self.as_json or not isinstance(outcome.value, list):
            return
        if self._new_only and outcome.status == "replayed":
            return
        self.print(outcome.value)

    def print(self, values: list[object]) -> None:
        """Print values as lines of JSON; a text as it is."""
        data = "".join(f"{one if isinstance(one, str) else json(one)}\n" for one in values)
        with self.lock:
            self._out([encoded(data)])


class DryRun:
    """Takes the place of effects and sinks, and prints what they would do."""

    def __init__(self, report: PipelineReport) -> None:
        self._report = report

    async def effect(self, title: str, message: PipelineMessage, call: object) -> None:
        """Print an effect. Its result is null."""
        self.sink(title, message, call)

    def sink(self, title: str, message: PipelineMessage, _call: object) -> None:
        """Print what a sink would get."""
        self._report.print([f"{line(title)}: {json(message.data)}"])


def checked(file: str, store: str | None, *, rehearsal: bool) -> Pipeline:
    """Return a pipeline without mistakes; else tell them, and end the command."""
    pipeline, mistakes = _examined(file, store, Once("memory:") if rehearsal else None)
    for one in mistakes:
        typer.echo(_text(file, one), err=True)
    if pipeline is None:
        wrong = sum(not one.is_warning for one in mistakes)
        refuse(f"{file}: {_sum(wrong, 0)}, so nothing ran")
    return pipeline


def _examined(file: str, store: str | None, rehearsal: Once | None) -> tuple[Pipeline | None, list[Mistake]]:
    try:
        import yaml
    except ModuleNotFoundError:
        refuse("pipelines need PyYAML: pip install 'onceward[cli,pipelines]'")
    del yaml
    try:
        return examine(file, ledger=store, rehearsal=rehearsal)
    except OSError as error:
        refuse(f"{file}: {error.strerror or error}")


def _text(file: str, one: Mistake) -> str:
    kind = "warning" if one.is_warning else "mistake"
    return line(f"{file}:{one.place.line}:{one.place.column}: {kind}: {one.text}")


def _sum(wrong: int, warnings: int) -> str:
    counts = [f"{wrong} mistake{'s' * (wrong != 1)}"] if wrong else ["no mistake"]
    counts += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
    return ", ".join(counts)
