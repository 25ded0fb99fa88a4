"""Makes text harmless before it reaches a terminal. All output of the command line passes here.

Keys, errors, results and messages come from others, and a terminal obeys them. Escape sequences change its clipboard. C1
controls start other sequences. Bidi overrides reorder text, and newlines forge lines of ours.

``guard`` puts a filter into the standard output and error, so no code can bypass it. Code that writes to a file descriptor
itself (``pipe``'s output, progress bars) calls ``lines``. Call ``line`` for the text of others inside a line of ours.
"""

import codecs
import io
import os
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from json import dumps
from typing import Any, TextIO, cast

import msgspec

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # all that typer's and rich's own text needs


def line(text: str) -> str:
    """Return a text for use inside one line: white space becomes single spaces, unprintable characters are escaped."""
    return text if text.isprintable() else _visible(" ".join(text.split()))


def lines(text: str) -> str:
    r"""Return a text with its newlines and tabs. Other unprintable characters are escaped, as in ``\u001b``.

    JSON writes them the same way, so JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # text after a \r would overwrite the text before it
    return "\n".join("\t".join(map(_visible, one.split("\t"))) for one in text.split("\n"))


def json(value: object, other: Callable[[Any], object] | None = None) -> str:
    """Return a value as one line of JSON; ``other`` returns what to write for a type that JSON does not know."""
    try:
        return lines(msgspec.json.encode(value, enc_hook=other).decode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only write escaped
        return dumps(msgspec.to_builtins(value, enc_hook=other, str_keys=True), separators=(",", ":"), allow_nan=False)


def encoded(text: str) -> bytes:
    r"""Return a text as it is. Lone surrogates are the bytes that they stand for, or escaped, as in ``\ud800``."""
    return text.encode(errors="surrogateescape" if _is_argument(text) else "backslashreplace")


def quoted(key: str) -> str:
    r"""Return a key as a shell takes it: plain, in quotes, or as ``$'\033'`` if it is not printable."""
    if key.isprintable():
        return shlex.quote(key)
    data = key.encode("utf-8", "surrogateescape" if _is_argument(key) else "surrogatepass")
    # Three octal digits, for a digit may follow. Every shell that has $'...' knows them (POSIX.1-2024, 2.2.4).
    return "$'" + "".join(_ASCII.get(byte) or f"\\{byte:03o}" for byte in data) + "'"


def guard() -> None:
    """Let only text and colours pass the standard output and error of this process."""
    sys.stdout = cast("TextIO", Screen(sys.stdout))
    sys.stderr = cast("TextIO", Screen(sys.stderr))


class Screen(io.TextIOWrapper):
    """A standard stream that writes what is printable, newlines, tabs and colours, and escapes all else."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        super().__init__(
            cast("Any", stream.buffer),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        self._stream = stream  # without a reference to it, it would close the file

    def write(self, text: str) -> int:
        """Write a text, filtered."""
        if not text.isprintable():
            parts = _COLOUR.split(text)
            parts[::2] = map(lines, parts[::2])
            text = "".join(parts)
        return super().write(text)


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Return bytes for a terminal as filtered text."""
    return map(lines, codecs.iterdecode(chunks, "utf-8", "replace"))


def readable(*descriptors: int) -> set[int]:
    """Wait until one of these has something to read or has ended. Return those; unlike select(), it takes any number."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # a program that shares this pipe, such as node, has made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


_ASCII = {code: chr(code) for code in range(32, 127)} | {39: "\\'", 92: "\\\\", 9: "\\t", 10: "\\n", 13: "\\r"}


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    if ord(c) < 0x10000:
        return f"\\u{ord(c):04x}"
    high, low = divmod(ord(c) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _is_argument(key: str) -> bool:
    """Return whether all lone surrogates are bytes of an argument that is not UTF-8."""
    return not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in key)
