"""The bodies of requests and answers. The OpenAPI document is made from them."""

from decimal import Decimal, DecimalException
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from onceward.core.policy import DAY
from onceward.results.classes import NotReplayable
from onceward.results.codec import ENVELOPE, Codec


class NoResult:
    """Stands for a result that the client does not send; ``why`` tells later callers."""

    def __init__(self, why: str) -> None:
        self.why = why


class JsonText(Codec):
    """Stores JSON as its text. What a Python worker recorded in the same namespace comes back as JSON, too."""

    def encode(self, value: object) -> str:
        """Return the text to store.

        Raises:
            NotReplayable: there is none.
        """
        if isinstance(value, NoResult):
            raise NotReplayable(value.why)
        assert isinstance(value, msgspec.Raw)
        text = bytes(value).decode()
        return f" {text}" if text.startswith(ENVELOPE) else text  # a space tells it from an envelope

    def decode(self, text: str) -> msgspec.Raw:
        """Return the JSON stored as ``text``.

        Raises:
            NotReplayable: it is a value of Python that JSON does not have.
        """
        if not text.startswith(ENVELOPE):
            return msgspec.Raw(text.strip().encode())
        value = super().decode(text)
        try:
            return msgspec.Raw(msgspec.json.encode(value))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise NotReplayable(f"it is a {type(value).__name__}, which JSON does not have") from error


JSON_TEXT: Final = JsonText()


def exact(text: msgspec.Raw) -> object:
    """Return the value of JSON. A number that a float would round becomes a Decimal, so that two amounts are never taken for one."""
    return _DECODER.decode(text)


def _number(text: str) -> object:
    number = float(text)
    try:
        return number if Decimal(repr(number)) == (whole := Decimal(text)) else whole
    except DecimalException:  # its exponent has more than 18 digits
        return text


_DECODER: Final[msgspec.json.Decoder[object]] = msgspec.json.Decoder(float_hook=_number)


NAMESPACE = "^[A-Za-z0-9_.<>-]{1,200}$"  # a part of a path; functions of Python can have a <locals> in their names
LEASE = 60.0  # seconds, unless the client asks for another one
_Text = Annotated[str, Meta(min_length=1, max_length=1000)]
_Name = Annotated[str, Meta(min_length=1, max_length=100)]
_Seconds = Annotated[float, Meta(gt=0, le=1e10)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # what every store can compare
Key = Annotated[
    str | int | list[str | int],
    Meta(description="What identifies the work, in its namespace. A list is a key of several parts."),
]
ClaimId = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{32}$",
        description="128 random bits in hexadecimal that the client makes anew for each claim.",
    ),
]
Fence = Annotated[int, Meta(ge=0, le=2**63 - 1, description="The fence that the claim's answer gave.")]
Lease = Annotated[
    float, Meta(gt=0, le=1e10, description="Seconds that the claim holds. The client extends it while it works.")
]
Parts = Annotated[
    list[_Text], Meta(max_length=100, description="Purposes to derive keys for, such as the name of a downstream call.")
]


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks for a key."""

    key: Key
    id: ClaimId
    input: Annotated[
        Raw | UnsetType, Meta(description="What must not change under one key. Only its SHA-256 is kept.")
    ] = UNSET
    lease: Lease = LEASE
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for the result of another claim.")] = 0.0
    retention: Annotated[
        _Seconds | None, Meta(description="Seconds a completed key answers duplicates; null is for ever.")
    ] = 14 * DAY
    max_attempts: Annotated[_Count | None, Meta(description="Claims after which the key is parked.")] = None
    on_lapse: Annotated[
        Literal["retry", "park"], Meta(description="What becomes of a key whose claimant has vanished.")
    ] = "retry"
    derive: Parts = []
    worker: Annotated[_Name | None, Meta(description="Who claims, for people who look at the ledger.")] = None


class HeldBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names a claim."""

    key: Key
    id: ClaimId
    fence: Fence


class ExtendBody(HeldBody, forbid_unknown_fields=True, kw_only=True):
    """Renews a claim."""

    lease: Lease = LEASE
    derive: Parts = []


class StepBody(HeldBody, forbid_unknown_fields=True, kw_only=True):
    """Asks for a step of the work, or records it if it has a result."""

    step: Annotated[str, Meta(min_length=1, max_length=200, description="The step's name, once in each attempt.")]
    result: Annotated[Raw | UnsetType, Meta(description="What the step returned: any JSON.")] = UNSET
    on_lapse: Annotated[
        Literal["retry", "park"],
        Meta(description="What a step means that an attempt ended in: run it again, or park the key for a person."),
    ] = "retry"
    lease: Lease = LEASE


class CompleteBody(HeldBody, forbid_unknown_fields=True, kw_only=True):
    """Completes a key, with a result or with the reason why there is none."""

    result: Annotated[Raw | UnsetType, Meta(description="What duplicates get: any JSON.")] = UNSET
    no_result: Annotated[
        _Text | UnsetType, Meta(description="Why duplicates get no result, as when it is too large.")
    ] = UNSET


class ReleaseBody(HeldBody, forbid_unknown_fields=True, kw_only=True):
    """Gives a key back for a retry, or parks it."""

    error: Annotated[_Text | None, Meta(description="Why, for a person to read.")] = None


class LookBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Asks what is recorded of a key."""

    key: Key


class Claimed(msgspec.Struct, kw_only=True):
    """The key is the client's. It must do the work, and end the claim."""

    outcome: Literal["claimed"] = "claimed"
    fence: Annotated[int, Meta(description="Larger than in every earlier claim on this key.")]
    attempt: Annotated[int, Meta(description="The number of this claim on the key, from 1.")]
    lease: Annotated[float, Meta(description="Seconds the claim holds, from before the client sent this request.")]
    keys: Annotated[dict[str, str], Meta(description="The derived keys: the same on each attempt.")]
    steps: Annotated[list[str], Meta(description="The steps that earlier attempts have made.")]


class Replayed(msgspec.Struct, kw_only=True):
    """The key was completed before. The client must not do the work."""

    outcome: Literal["completed"] = "completed"
    result: Annotated[Raw, Meta(description="Exactly what was recorded.")]
    attempt: Annotated[int, Meta(description="The number of the claim that completed it.")]


class Extended(msgspec.Struct, kw_only=True):
    """The claim is renewed."""

    lease: Annotated[float, Meta(description="Seconds the claim holds, from before the client sent this request.")]
    keys: Annotated[dict[str, str], Meta(description="The derived keys: the same on each attempt.")]


class StepAnswer(msgspec.Struct, kw_only=True):
    """Whether the step is made. If not, the client makes it, and records its result."""

    made: bool
    result: Annotated[Raw | UnsetType, Meta(description="What was recorded of it, if it is made.")] = UNSET
    key: Annotated[str, Meta(description="The step's derived key, for the downstream: the same on each attempt.")]
    lease: Annotated[float, Meta(description="Seconds the claim holds, from before the client sent this request.")]


class ClaimEnded(msgspec.Struct, kw_only=True):
    """The claim has ended."""

    outcome: Literal["completed", "released", "parked"]
    replayable: Annotated[
        bool | UnsetType, Meta(description="Of a completed key: whether duplicates get its result.")
    ] = UNSET
    why: Annotated[str | UnsetType, Meta(description="Why they do not.")] = UNSET


class Looked(msgspec.Struct, kw_only=True):
    """What is recorded of a key."""

    status: Annotated[str, Meta(description="IN_PROGRESS, COMPLETED, RELEASED or PARKED.")]
    attempt: Annotated[int, Meta(description="How many claims it has had.")]
    fence: int
    lease: Annotated[float, Meta(description="Seconds that a claim still holds it.")]
    worker: Annotated[str | None, Meta(description="Who made the last claim.")]
    error: Annotated[str | None, Meta(description="The last error.")]
    steps: Annotated[list[str], Meta(description="The steps that are made.")]
    result: Annotated[Raw | UnsetType, Meta(description="The recorded result, if it can be replayed.")] = UNSET


class HealthBody(msgspec.Struct, kw_only=True):
    """This instance and its ledger answer."""

    status: Literal["ok"] = "ok"
    warning: Annotated[
        str | UnsetType, Meta(description="What a person should look at. The service's log says more.")
    ] = UNSET


class ProblemBody(msgspec.Struct, kw_only=True):
    """Why a request is refused (RFC 9457)."""

    type: Annotated[str, Meta(description="The word at its end tells programs which problem this is.")]
    title: str
    status: int
    detail: Annotated[str, Meta(description="What happened, and what to do next.")]
    retry_after: Annotated[float | UnsetType, Meta(description="Seconds until the same request can be sent again.")] = (
        UNSET
    )
