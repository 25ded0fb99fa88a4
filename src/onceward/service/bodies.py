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
        # A space in it tells it from an envelope. One before it would be lost where a record keeps it within other JSON.
        return f"{{ {text[1:]}" if text.startswith(ENVELOPE) else text

    def decode(self, text: str) -> msgspec.Raw:
        """Return the JSON stored as ``text``.

        Raises:
            NotReplayable: it is a value of Python that JSON does not have.
        """
        if not text.startswith(ENVELOPE):
            return msgspec.Raw(text.encode())
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
        max_length=32,  # for Python, $ is also before a line break
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


class _Body(msgspec.Struct, forbid_unknown_fields=True): ...


class ClaimBody(_Body):
    """Asks for a key.

    Attributes:
        input: What must not change under one key. Only its SHA-256 is kept.
        wait: Seconds to wait for the result of another claim.
        retention: Seconds a completed key answers duplicates; null is for ever.
        max_attempts: Claims after which the key is parked.
        on_lapse: What becomes of a key whose claimant has vanished.
        worker: Who claims, for people who look at the ledger.
    """

    key: Key
    id: ClaimId
    input: Raw | UnsetType = UNSET
    lease: Lease = LEASE
    wait: Annotated[float, Meta(ge=0)] = 0.0
    retention: _Seconds | None = 14 * DAY
    max_attempts: _Count | None = None
    on_lapse: Literal["retry", "park"] = "retry"
    derive: Parts = []
    worker: _Name | None = None


class HeldBody(_Body):
    """Names a claim."""

    key: Key
    id: ClaimId
    fence: Fence


class ExtendBody(HeldBody):
    """Renews a claim."""

    lease: Lease = LEASE
    derive: Parts = []


class StepBody(HeldBody):
    """Asks for a step of the work, or records it, with a result or with the reason why there is none.

    Attributes:
        step: The step's name, once in each attempt.
        result: What the step returned: any JSON.
        no_result: Why later attempts get no result, as when it is too large. They park the key.
        on_lapse: What a step means that an attempt ended in: run it again, or park the key for a person.
    """

    step: Annotated[str, Meta(min_length=1, max_length=200)]
    result: Raw | UnsetType = UNSET
    no_result: _Text | UnsetType = UNSET
    on_lapse: Literal["retry", "park"] = "retry"
    lease: Lease = LEASE


class CompleteBody(HeldBody):
    """Completes a key, with a result or with the reason why there is none.

    Attributes:
        result: What duplicates get: any JSON.
        no_result: Why duplicates get no result, as when it is too large.
    """

    result: Raw | UnsetType = UNSET
    no_result: _Text | UnsetType = UNSET


class ReleaseBody(HeldBody):
    """Gives a key back for a retry, or parks it.

    Attributes:
        error: Why, for a person to read.
    """

    error: _Text | None = None


class LookBody(_Body):
    """Asks what is recorded of a key."""

    key: Key


class Claimed(msgspec.Struct, kw_only=True):
    """The key is the client's. It must do the work, and end the claim.

    Attributes:
        fence: Larger than in every earlier claim on this key.
        attempt: The number of this claim on the key, from 1.
        lease: Seconds the claim holds, from before the client sent this request.
        keys: The derived keys: the same on each attempt.
        steps: The steps that earlier attempts have made.
    """

    outcome: Literal["claimed"] = "claimed"
    fence: int
    attempt: int
    lease: float
    keys: dict[str, str]
    steps: list[str]


class Replayed(msgspec.Struct, kw_only=True):
    """The key was completed before. The client must not do the work.

    Attributes:
        result: Exactly what was recorded.
        attempt: The number of the claim that completed it.
    """

    outcome: Literal["completed"] = "completed"
    result: Raw
    attempt: int


class Extended(msgspec.Struct, kw_only=True):
    """The claim is renewed.

    Attributes:
        lease: Seconds the claim holds, from before the client sent this request.
        keys: The derived keys: the same on each attempt.
    """

    lease: float
    keys: dict[str, str]


class StepAnswer(msgspec.Struct, kw_only=True):
    """Whether the step is made. If not, the client makes it, and records its result.

    Attributes:
        result: What was recorded of it, if it is made and has a result.
        key: The step's derived key, for the downstream: the same on each attempt.
        lease: Seconds the claim holds, from before the client sent this request.
    """

    made: bool
    result: Raw | UnsetType = UNSET
    key: str
    lease: float


class ClaimEnded(msgspec.Struct, kw_only=True):
    """The claim has ended.

    Attributes:
        replayable: Of a completed key: whether duplicates get its result.
        why: Why they do not.
    """

    outcome: Literal["completed", "released", "parked"]
    replayable: bool | UnsetType = UNSET
    why: str | UnsetType = UNSET


class Looked(msgspec.Struct, kw_only=True):
    """What is recorded of a key.

    Attributes:
        status: IN_PROGRESS, COMPLETED, RELEASED or PARKED.
        attempt: How many claims it has had.
        lease: Seconds that a claim still holds it.
        worker: Who made the last claim.
        error: The last error.
        steps: The steps that are made.
        result: The recorded result, if it can be replayed.
    """

    status: str
    attempt: int
    fence: int
    lease: float
    worker: str | None
    error: str | None
    steps: list[str]
    result: Raw | UnsetType = UNSET


class HealthBody(msgspec.Struct, kw_only=True):
    """This instance and its ledger answer."""

    status: Literal["ok"] = "ok"


class ProblemBody(msgspec.Struct, kw_only=True):
    """Why a request is refused (RFC 9457).

    Attributes:
        type: The word at its end tells programs which problem this is.
        detail: What happened, and what to do next.
        retry_after: Seconds until the same request can be sent again.
    """

    type: str
    title: str
    status: int
    detail: str
    retry_after: float | UnsetType = UNSET
