"""Results of clients: JSON that is recorded and replayed as it came, without being read into Python's types."""

from decimal import Decimal, DecimalException
from typing import Final

import msgspec

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
