"""Seals: encrypt or redact results and error texts before they leave the process (``Policy.seal``).

A record has a sealed result as ``{"$onceward":1,"sealed":"..."}``, or ``"sealed64"`` for bytes that are not UTF-8. An error's
type stays readable: ``CardDeclined: sealed:...``.
"""

from binascii import a2b_base64, b2a_base64
from typing import Final

import msgspec

from onceward.core.policy import Seal
from onceward.results.classes import NotReplayable

_TEXT: Final = '{"$onceward":1,"sealed":'
_BYTES: Final = '{"$onceward":1,"sealed64":'
_MARK: Final = ": sealed:"
_MARK64: Final = ": sealed64:"
_FAILED: Final = "(its text could not be sealed)"


class NotSealed(NotReplayable):
    """The seal failed. The message leaves out its error's text, which may quote the secret."""


class NotOpened(NotReplayable):
    """The recorded result cannot be opened.

    Attributes:
        comes_back: whether it may be opened later: its seal raised, and can for example have lost its key service.
    """

    comes_back = False


def sealed(seal: Seal, text: str) -> str:
    """Return a result as the record has it; raises NotSealed if the seal raised, or did not return bytes."""
    token = _closed(seal, text)
    try:
        return f"{_TEXT}{msgspec.json.encode(token.decode()).decode()}}}"
    except UnicodeDecodeError:
        return f'{_BYTES}"{b2a_base64(token, newline=False).decode()}"}}'


def sealed_whole(seal: Seal, text: str) -> str:
    """Like :func:`sealed`, for what must be used again: raises NotSealed if the seal does not open what it seals."""
    token = sealed(seal, text)
    try:
        is_whole = opened(seal, token) == text
    except NotOpened as error:
        raise NotSealed(str(error)) from error
    if not is_whole:
        raise NotSealed("its seal cannot open what it sealed")
    return token


def opened(seal: Seal | None, text: str) -> str:
    """Return a result as it was before sealing; raises NotOpened if there is no seal, or it cannot open this."""
    if seal is None:
        raise NotOpened("it is sealed: give the guard the seal= that it was recorded with")
    try:
        token = msgspec.json.decode(text, type=dict[str, object])
        held = str(token.get("sealed64", token.get("sealed")))
        data = a2b_base64(held) if "sealed64" in token else held.encode()
    except Exception as error:
        raise _not_opened(error) from error
    try:
        plain = seal[1](data)
    except Exception as error:
        failed = _not_opened(error)
        failed.comes_back = True
        raise failed from error
    try:
        return plain.decode()
    except Exception as error:
        raise _not_opened(error) from error


def _not_opened(error: Exception) -> NotOpened:
    return NotOpened(f"it is sealed, and cannot be opened: {type(error).__qualname__}: {error}")


def sealed_note(seal: Seal, note: str) -> str:
    """Return an error's text, such as ``CardDeclined: 4242...``, as the record has it. Its type stays readable."""
    kind, colon, rest = note.partition(": ")
    if not colon or not kind.isidentifier():
        kind, rest = "text", note
    try:
        token = _closed(seal, rest)
    except NotSealed:
        return f"{kind}: {_FAILED}"
    if token.isascii() and token.decode().isprintable():
        return f"{kind}{_MARK}{token.decode()}"
    return f"{kind}{_MARK64}{b2a_base64(token, newline=False).decode()}"


def opened_note(seal: Seal | None, note: str | None) -> str | None:
    """Return an error's text as it was before sealing; unchanged when it cannot be opened."""
    if seal is None or note is None:
        return note
    for mark in (_MARK, _MARK64):
        kind, has_mark, token = note.partition(mark)
        if has_mark:
            try:
                rest = seal[1](a2b_base64(token) if mark == _MARK64 else token.encode()).decode()
            except Exception:  # show a person the sealed text instead
                return note
            return rest if kind == "text" else f"{kind}: {rest}"
    return note


def _closed(seal: Seal, text: str) -> bytes:
    try:
        token: object = seal[0](text.encode("utf-8", "surrogatepass"))
    except Exception as error:
        raise NotSealed(f"its seal raised {type(error).__qualname__}") from error
    if not isinstance(token, bytes):
        raise NotSealed(f"its seal returned {type(token).__name__} instead of bytes")
    return token
