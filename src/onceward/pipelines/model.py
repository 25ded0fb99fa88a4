"""The model of a pipeline's file. The JSON Schema and the reference page are made from it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onceward.pipelines.settings import (
    Address,
    BusyWait,
    Expression,
    KeyExpression,
    MessageField,
    Regex,
    Retention,
    Seconds,
    Settings,
    SinkChoice,
    SinkList,
    SourceChoice,
    StepList,
    Text,
    given,
)

OnStepError = Annotated[
    Literal["fail", "continue", "skip", "dead_letter", "park"],
    Meta(
        description="What to do after an error. fail: the message fails, and comes again. continue: the message goes on "
        "without this step or sink. skip: the message ends here, and counts as done. dead_letter: as skip, and the message "
        "goes to dead_letters. park: the key is parked for a person."
    ),
]
Name = Annotated[
    str,
    Meta(
        description="A name that is unique in the file.", pattern=r"^[^\s:\x00-\x1f\x7f-\x9f]+$(?!\n)", max_length=100
    ),
]


class FindOut(Settings):
    """Ask the downstream whether a step's effect was made, after an attempt ended inside the step.

    Attributes:
        steps: The steps that ask. The message after them has the answer. They must have no effect.
        made: Whether the effect was made, read from the message after these steps.
        result: The result that the step had, read from the same message. Null by default.
    """

    steps: StepList
    made: Expression
    result: Expression | None = None


class StepKeys(Settings):
    """What can stand beside the type of a step.

    Attributes:
        name: The step's name in the record. By default it comes from what the step does. After a change of name, unfinished
            messages run the step again.
        when: Do this step only if this is true. Other messages go on to the next step.
        into: The field of the message that takes the step's result, such as payment.receipt. By default the result is recorded
            and not used.
        on_lapse: What to do if an attempt ended inside this step, so that nobody knows whether its effect was made.
            retry: run it again with the same derived key. park: park the key for a person; this costs a second write,
            and an error parks the key, too. Or give a list of steps that ask the downstream (find out).
    """

    name: Name | None = None
    when: Expression | None = None
    into: MessageField | None = None
    on_lapse: Literal["retry", "park"] | FindOut = "retry"
    on_error: OnStepError = "fail"


class GuardSettings(Settings):
    """Settings of every guard.

    Attributes:
        key: What identifies the operation. No part of it may be missing. By default the SHA-256 of the message.
        fingerprint: What must not change under one key; `message` is the whole message. By default nothing is compared.
        retention: How long a completed record answers duplicates.
        attempts: How often a key is tried before it is parked.
        lease: How long a key stays claimed after its worker vanished.
        on_lapse: What to do with a key whose worker vanished. With retry, each step decides for itself.
    """

    key: KeyExpression | None = None
    fingerprint: Expression | None = None
    retention: Retention = given(Retention("14d"))
    attempts: Annotated[int, Meta(ge=1)] | None = None
    lease: Seconds = given(Seconds(60))
    on_lapse: Literal["retry", "park"] = "retry"


class InnerGuardSettings(GuardSettings):
    """Settings of a guard around steps or a sink.

    Attributes:
        name: The namespace of the guard's keys. The pipeline's name comes before it. By default it is the name of the step or
            sink, or else the sink's address. If it changes, the guard forgets all keys.
        on_busy: What to do while another worker has the key: wait this long, or fail, so that the message comes again. A
            failure counts as one of the attempts of the outer guard.
    """

    name: Name | None = None
    on_busy: BusyWait = given(BusyWait("1m"))


class SinkKeys(Settings):
    """What can stand beside the type of a sink.

    Attributes:
        name: The sink's name in the record and in the examples.
        when: Take only messages for which this is true.
        guard: A guard around this sink alone.
    """

    name: Name | None = None
    when: Expression | None = None
    guard: InnerGuardSettings | None = None
    on_error: OnStepError = "fail"


class SourceKeys(Settings):
    """What can stand beside the type of a source: nothing."""


class Hold(Settings):
    """Read no input while a worker has this key. The worker can also be a call of `onceward exec`.

    Messages that were already received still finish.

    Attributes:
        key: The key as the ledger has it, with its namespace.
        every: How often to look.
    """

    key: Text
    every: Seconds = given(Seconds(1))


class Pauses(Settings):
    """Pauses after a failure. Each is twice as long as the one before.

    Attributes:
        first: The first pause.
        longest: The longest pause.
    """

    first: Seconds = given(Seconds("1s"))
    longest: Seconds = given(Seconds("15m"))


class Example(Settings):
    """A message and its expected outcome. `onceward test` runs it, also as a duplicate and with a kill after each step.

    Attributes:
        name: What the example shows.
        input: The message.
        results: What each effect returns, by its name. Null by default.
        errors: What each effect fails with, by its name.
        output: What each sink gets, by its name. A sink without a name here gets nothing.
        effects: How often each effect is made, by its name. An effect without a name here is never made.
        fails: A regular expression for the error with which the message fails.
    """

    name: Text
    input: Any
    results: dict[str, Any] = {}
    errors: dict[str, str] = {}
    output: dict[str, list[Any]] | None = None
    effects: dict[str, int] | None = None
    fails: Regex | None = None


class PipelineFile(Settings):
    """A pipeline.

    Attributes:
        name: The namespace of all keys of this pipeline.
        source: Where messages come from: one type and its settings.
        ledger: The URL of the ledger, such as sqlite:///orders.db or dynamodb://ledger. A relative path begins in the file's folder.
        guard: A guard around the whole pipeline. Without it, the keys are those of the source, such as message ids.
        hold: Read no input while a worker has a certain key.
        concurrency: How many messages run at a time.
        backoff: How long a failed message waits before it comes again.
        grace: How long a stop waits for running messages. By default it waits until they end.
        dead_letters: Where `on_error: dead_letter` sends messages.
        steps: What happens to each message, in order.
        sinks: Where each message goes in the end.
        examples: The examples that `onceward test` checks.
    """

    name: Name
    source: SourceChoice
    ledger: Text = "sqlite:///onceward.db"
    guard: GuardSettings | None = None
    hold: Hold | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 10
    backoff: Pauses = msgspec.field(default_factory=Pauses)
    grace: Seconds | None = None
    dead_letters: Address | None = None
    steps: StepList = StepList()
    sinks: SinkList = SinkList()
    examples: list[Example] = []


KEYS: dict[str, type[Settings]] = {"step": StepKeys, "sink": SinkKeys, "source": SourceKeys}
__all__ = ["KEYS", "Example", "PipelineFile", "SinkChoice"]
