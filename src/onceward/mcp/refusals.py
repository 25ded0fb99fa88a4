"""What a model reads when its call did not run: what happened, and what to do next. No ledger's key and no secret is in it."""

from onceward.errors import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    OncewardError,
    Parked,
    ResultNotRecorded,
    ResultUnavailable,
    StoreError,
)
from onceward.mcp.key import KeyArgument

_TEXTS: dict[type[OncewardError], tuple[str, str]] = {
    Busy: (
        "busy",
        (
            "Not done again: a call with this key is running, or its server has died and its claim has not ended yet. Call again in "
            "{seconds} seconds with the same key and the same arguments. Do not make a new key."
        ),
    ),
    Mismatch: (
        "mismatch",
        (
            "Refused, and nothing was done: this key was used before with other arguments. To repeat the earlier call, give exactly its "
            "arguments. If this is a new operation, give a new key."
        ),
    ),
    Parked: (
        "parked",
        (
            "Refused: an earlier call with this key has failed or was cut off, and a person must decide what happens next. Its effect may "
            "have been made. Do not call again, also not with a new key. Tell the user to ask the operator of this server."
        ),
    ),
    LeaseLost: (
        "lost",
        (
            "It is not known whether this was done: this server was cut off for too long, and another one may have gone on. Call again in "
            "a minute with the same key and the same arguments. Do not make a new key."
        ),
    ),
    ResultUnavailable: (
        "unavailable",
        (
            "Already done by an earlier call with this key, but its result cannot be shown again. Do not call again, also not with a new "
            "key. Look the outcome up with another tool, or tell the user."
        ),
    ),
    ResultNotRecorded: (
        "unrecorded",
        "This was done, but it could not be recorded. Do not call again, also not with a new key: it could be done twice.",
    ),
    StoreError: (
        "away",
        "Refused, and nothing was done: this server cannot reach its ledger. Call again later with the same key and the same arguments.",
    ),
}
_OTHER = (
    "refused",
    "Refused: this server cannot tell whether this call was done before. Do not call again. Tell the user to ask the operator.",
)


def refusal(error: OncewardError, tool: str, argument: KeyArgument | None) -> tuple[str, str, float | None]:
    """Return the kind of a refusal, the text for the model, and the seconds after which to ask again, if that helps.

    Args:
        error: why the call did not run, or is not recorded.
        tool: its name.
        argument: the argument that takes a key, if the tool has one.
    """
    if isinstance(error, KeyMissing):
        give = f"Give {argument.name}" if argument else "Its client must send one"
        text = f"Refused, and nothing was done: {error}. {give}: a new one for a new operation, the same one to repeat an earlier {tool}."
        return "key", text, None
    kind, text = next((told for known, told in _TEXTS.items() if isinstance(error, known)), _OTHER)
    after = max(1.0, round(error.retry_after, 1)) if isinstance(error, Busy) else None
    return kind, text.format(seconds=after), after
