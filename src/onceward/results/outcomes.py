"""How a handler's end is recorded: results and exceptions as text that any ledger takes."""

import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Final

from onceward.core import protocol
from onceward.core.policy import Policy
from onceward.core.protocol import Outcome
from onceward.core.record import COMPLETED, Record
from onceward.errors import OncewardError, ResultWarning

if TYPE_CHECKING:
    from onceward.results.codec import Codec

SEALED: Final = '{"$onceward":1,"sealed'  # how a sealed result begins
_LONGEST_ERROR: Final = 1000  # characters of an exception's text that are recorded


class GivenBack(OncewardError):
    """The request was refused before its handler began: the key is given back as if never claimed."""


def completion(codec: "Codec", policy: Policy, result: object) -> Outcome:
    """Return the outcome that records ``result``. An outcome without a result says why it cannot be replayed."""
    try:
        text = codec.encode(result)
        if policy.seal is not None:
            text = sealing().sealed(policy.seal, text)
    except Exception as error:  # encoding may run a user's code
        return protocol.completed(None, noted(describe(error), policy).removeprefix("NotReplayable: "))
    size = len(text) if text.isascii() else len(text.encode())  # as size_of()
    assert policy.max_result is not None  # the guard has asked the store
    if size <= policy.max_result:
        return tuple.__new__(Outcome, (COMPLETED, text, None, None))  # as protocol.completed()
    return protocol.completed(None, f"it takes {size} bytes, and max_result={policy.max_result}")


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8. ASCII is one byte a character, and ``isascii()`` costs nothing."""
    return len(text) if text.isascii() else len(text.encode())


def without_result(error: Exception) -> Outcome:
    """Return the outcome of a handler whose result the store refuses with ``error``."""
    return protocol.completed(None, storable(f"the store refused the result: {error}"))


NO_TIME: Final = protocol.completed(
    None, "the store did not take the result within one lease after the handler had ended"
)


def warn_of_missing(record: Record, stacklevel: int = 6) -> None:
    """Warn when a completed record has no result to replay."""
    if record.result is None:
        warnings.warn(
            f"{record.key}: completed, but the result is not stored, so duplicates get ResultUnavailable: {record.error}",
            ResultWarning,
            stacklevel=stacklevel,
        )


def final(error: Exception, policy: Policy) -> Outcome:
    """Return the outcome that records an exception, to raise it again for every duplicate."""
    from onceward.results.codec import encode_exception

    try:
        text = encode_exception(error)
        if policy.seal is not None:
            text = sealing().sealed(policy.seal, text)
    except Exception as trouble:
        reason = describe(trouble).removeprefix("NotReplayable: ")
        why = f"the outcome was {describe(error)}, which cannot be replayed: {reason}"
        return protocol.completed(None, noted(why, policy))
    return protocol.completed(text, noted(describe(error), policy))


def noted(text: str, policy: Policy) -> str:
    """Return an error's text as it is recorded: unchanged or sealed."""
    return text if policy.seal is None else sealing().sealed_note(policy.seal, text)


def opened_note(text: str | None, policy: Policy) -> str | None:
    """Return an error's text as it was before :func:`noted`."""
    return text if policy.seal is None else sealing().opened_note(policy.seal, text)


def sealing() -> ModuleType:
    """Return the module that seals and opens. The first call loads it."""
    from onceward.results import sealing as made

    return made


def describe(error: BaseException) -> str:
    """Return an exception as one line for the record."""
    try:
        text = str(error)
    except Exception:  # a user's __str__ failed
        text = "(its text cannot be shown)"
    kind = type(error).__qualname__
    return storable(f"{kind}: {text}" if text else kind)


def storable(text: str) -> str:
    """Cut a text to the length that a record takes, and escape lone surrogates so that any store can encode it."""
    return text[:_LONGEST_ERROR].encode("utf-8", "backslashreplace").decode()
