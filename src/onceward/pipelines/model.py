"""The model of a pipeline's file. The JSON Schema and the reference page are made from it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onceward.pipelines.settings import (
    Address,
    Expression,
    Seconds,
    Settings,
    SinkChoice,
    SinkList,
    SourceChoice,
    StepList,
)

OnStepError = Annotated[
    Literal["fail", "continue", "skip", "dead_letter", "park"],
    Meta(
        description="What an error means. fail: the message fails, and comes again. continue: the message goes on without this part. "
        "skip: the message ends here, and counts as done. dead_letter: as skip, and the message goes to dead_letters. park: "
        "the key is parked for a person."
    ),
]
Name = Annotated[
    str,
    Meta(
        description="A name that is unique in the file.", pattern=r"^[^\s:\x00-\x1f\x7f-\x9f]+$(?!\n)", max_length=100
    ),
]


class FieldRetention(Settings, kw_only=True):
    """Keep a record until a time that stands in the message."""

    until: Annotated[
        Expression, Meta(description="The time in the message: seconds since 1970, or a text as in RFC 3339.")
    ]
    plus: Annotated[Seconds, Meta(description="How much longer.")] = 0


class FindOut(Settings, kw_only=True):
    """Ask the downstream whether a step was made that an earlier attempt ended in."""

    steps: Annotated[StepList, Meta(description="What asks: its last message has the answer. It must have no effect.")]
    made: Annotated[Expression, Meta(description="Whether the step was made, read from that message.")]
    result: Annotated[
        Expression | None, Meta(description="The result that the step had, read from that message. Null by default.")
    ] = None


class StepKeys(Settings, kw_only=True):
    """What can stand beside the type of a step."""

    name: Annotated[
        Name | None,
        Meta(
            description="What the record knows the step by; by default what it does. A new name means that unfinished messages make "
            "the step again."
        ),
    ] = None
    when: Annotated[Expression | None, Meta(description="Do this step only if it holds. Other messages go on.")] = None
    into: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The field of the message that takes the step's result, such as payment.receipt. By default the result is "
            "recorded and not used."
        ),
    ] = None
    on_lapse: Annotated[
        Literal["retry", "park"] | FindOut,
        Meta(
            description="What it means if an attempt ended inside this step, so that nobody knows whether its effect was made. retry: make "
            "it again with the same derived key. park: park the key for a person; this costs a second write, and an error parks "
            "the key, too. Or steps that find out."
        ),
    ] = "retry"
    not_made: Annotated[
        list[str],
        Meta(
            description="With on_lapse: park, regular expressions of errors that say that the effect was not made, so that the message "
            "can be tried again."
        ),
    ] = []
    on_error: OnStepError = "fail"


class GuardSettings(Settings, kw_only=True):
    """What all guards can say."""

    key: Annotated[
        Expression | None,
        Meta(
            description="What identifies the operation. All parts must be there. By default the SHA-256 of the message."
        ),
    ] = None
    fingerprint: Annotated[
        Expression | None,
        Meta(description="What must not change under one key; message is all of it. By default nothing is compared."),
    ] = None
    retention: Annotated[
        Seconds | FieldRetention | Literal["forever"],
        Meta(description="How long a completed record answers duplicates."),
    ] = "14d"
    attempts: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="How often a key is tried before it is parked.")
    ] = None
    lease: Annotated[Seconds, Meta(description="How long a claim holds after its worker vanished.")] = 60
    on_lapse: Annotated[
        Literal["retry", "park"],
        Meta(description="What to do with a key whose worker vanished. With retry, each step decides for itself."),
    ] = "retry"


class InnerGuardSettings(GuardSettings, kw_only=True):
    """What a guard around steps or a sink can say."""

    name: Annotated[Name | None, Meta(description="The namespace of its keys, behind the pipeline's name.")] = None
    on_busy: Annotated[
        Literal["fail"] | Seconds,
        Meta(
            description="What to do while another worker holds the key: wait so long, or fail, so that the message comes again. "
            "A failure counts as one of the attempts of the guard around it."
        ),
    ] = "1m"


class SinkKeys(Settings, kw_only=True):
    """What can stand beside the type of a sink."""

    name: Annotated[Name | None, Meta(description="What the record and the examples know the sink by.")] = None
    when: Annotated[Expression | None, Meta(description="Take only messages for which it holds.")] = None
    guard: Annotated[InnerGuardSettings | None, Meta(description="A guard around this sink alone.")] = None
    on_error: OnStepError = "fail"


class SourceKeys(Settings):
    """What can stand beside the type of a source: nothing."""


class Hold(Settings, kw_only=True):
    """Hold all input while a key is held by any worker, such as one of `onceward exec`.

    Messages that were received before still run to their end.
    """

    key: Annotated[str, Meta(description="The key as the ledger has it, with its namespace.", min_length=1)]
    every: Annotated[Seconds, Meta(description="How often to look.")] = 1


class Pauses(Settings, kw_only=True):
    """Pauses after a failure. Each is twice as long as the one before."""

    first: Annotated[Seconds, Meta(description="The first pause.")] = "1s"
    longest: Annotated[Seconds, Meta(description="The longest pause.")] = "15m"


class Example(Settings, kw_only=True):
    """A message and what comes of it. `onceward test` runs it, also as a duplicate and with a kill after each step."""

    name: Annotated[str, Meta(description="What it shows.", min_length=1)]
    input: Annotated[Any, Meta(description="The message that comes.")]
    results: Annotated[dict[str, Any], Meta(description="What each effect returns, by its name. Null by default.")] = {}
    errors: Annotated[dict[str, str], Meta(description="What each effect fails with, by its name.")] = {}
    output: Annotated[
        dict[str, list[Any]] | None, Meta(description="What each sink gets, by its name; others get nothing.")
    ] = None
    effects: Annotated[
        dict[str, int] | None, Meta(description="How often each effect is made, by its name; others never.")
    ] = None
    fails: Annotated[str | None, Meta(description="A regular expression of the error that the message fails with.")] = (
        None
    )


class PipelineFile(Settings, kw_only=True):
    """A pipeline."""

    name: Annotated[Name, Meta(description="The namespace of all keys of this pipeline.")]
    source: Annotated[SourceChoice, Meta(description="Where messages come from: one type and its settings.")]
    ledger: Annotated[
        str, Meta(description="The URL of the ledger, such as sqlite:///orders.db or dynamodb://ledger.", min_length=1)
    ] = "sqlite:///onceward.db"
    guard: Annotated[
        GuardSettings | None,
        Meta(description="A guard around the whole pipeline. Without it the source's own ids are the keys."),
    ] = None
    hold: Annotated[Hold | None, Meta(description="Hold all input while a key is held.")] = None
    concurrency: Annotated[int, Meta(description="How many messages run at a time.", ge=1, le=1000)] = 10
    backoff: Annotated[Pauses, Meta(description="How long a message that failed waits until it comes again.")] = (
        msgspec.field(default_factory=Pauses)
    )
    grace: Annotated[
        Seconds | None, Meta(description="How long a stop waits for running messages. By default until they end.")
    ] = None
    dead_letters: Annotated[Address | None, Meta(description="Where on_error: dead_letter sends messages.")] = None
    steps: Annotated[StepList, Meta(description="What happens to each message, in order.")] = StepList()
    sinks: Annotated[SinkList, Meta(description="Where each message goes in the end.")] = SinkList()
    examples: Annotated[list[Example], Meta(description="What onceward test checks.")] = []


KEYS: dict[str, type[Settings]] = {"steps": StepKeys, "sinks": SinkKeys, "sources": SourceKeys}
__all__ = ["KEYS", "Example", "PipelineFile", "SinkChoice"]
