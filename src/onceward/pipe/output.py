"""The output of a handled line: a command's bytes, or a function's value."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from onceward.terminal import json, lines

_CHUNK = 64 * 1024


class Bytes:
    """What a command wrote, in a file, because it may be too large for memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def raw(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk

    def json(self) -> Iterator[bytes]:
        """Yield a JSON string when it is UTF-8, else ``{"hex": "..."}``."""
        if self._is_text():
            decoder = codecs.getincrementaldecoder("utf-8")()
            yield b'"'
            for chunk in self.raw():
                yield json(decoder.decode(chunk))[1:-1].encode()
            yield b'"'
        else:
            yield b'{"hex":"'
            for chunk in self.raw():
                yield chunk.hex().encode()
            yield b'"}'

    def _is_text(self) -> bool:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self.raw():
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True


class Value(NamedTuple):
    """What a function returned."""

    value: object

    def raw(self) -> Iterator[bytes]:
        """Yield a str as one or more lines, None as nothing, and all else as one line of JSON."""
        if isinstance(self.value, str):
            yield self.value.encode(errors="surrogateescape")
            if not self.value.endswith("\n"):
                yield b"\n"
        elif self.value is not None:
            yield from self.json()
            yield b"\n"

    def json(self) -> Iterator[bytes]:
        """Yield it as JSON. A type that JSON does not know is written as its text."""
        try:
            yield lines(msgspec.json.encode(self.value, enc_hook=_plain).decode()).encode()
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
            yield json(repr(self.value)).encode()


Output = Bytes | Value


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic
    return dump(mode="json") if dump is not None else str(value)
