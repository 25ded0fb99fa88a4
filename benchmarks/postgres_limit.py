"""The limit: the statements of a guard over a bare socket.

It sends bytes that were made beforehand, and looks at nothing in an answer but a claim's fence. No client can take less.
"""

import socket
import struct
from itertools import cycle
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from postgres_replay import FAILING, FENCE, FIRST, NAME, Order, Statement

READY = b"Z\0\0\0\5I"
MARK = "@" * 16  # in the place of a fence, and as long


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def written(value: Any) -> bytes:
    """Return a value as the protocol's text."""
    if type(value) is list:
        return b"{" + b",".join(b"NULL" if one is None else b'"%b"' % _escaped(one) for one in value) + b"}"
    return str(value).encode()


def _escaped(value: object) -> bytes:
    return str(value).encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def asked(one: Statement) -> bytes:
    """Return the bytes that libpq sends for a statement: parse, bind, describe, execute, sync."""
    marks = [[MARK] * len(value) if type(value) is list else MARK for value in one.values]
    values = [marks[at] if at in one.fences else value for at, value in enumerate(one.values)]
    bound = b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(text := written(value))) + text
        for value in values
    )
    bound = b"\0\0" + struct.pack("!hh", 0, len(one.values)) + bound + struct.pack("!hh", 1, 1)
    return (
        message(b"P", b"\0" + one.text.encode() + b"\0\0\0")
        + message(b"B", bound)
        + message(b"D", b"P\0")
        + message(b"E", b"\0\0\0\0\0")
        + message(b"S", b"")
    )


class Place(NamedTuple):
    """Where the fences of an answer are: the same in all answers of its statement, whose values are as long."""

    start: int
    stride: int

    @classmethod
    def of(cls, answer: bytes) -> "Place":
        """Find it in the first row."""
        at = 0
        while answer[at : at + 1] != b"D":
            at += 1 + int.from_bytes(answer[at + 1 : at + 5], "big")
        stride = 1 + int.from_bytes(answer[at + 1 : at + 5], "big")
        at += 7
        for _ in range(FENCE):
            at += 4 + max(0, int.from_bytes(answer[at : at + 4], "big", signed=True))
        return cls(at + 4, stride)

    def fences(self, answer: bytes, count: int) -> list[bytes]:
        """Return those of so many rows, as text."""
        places = range(self.start, self.start + count * self.stride, self.stride)
        return [b"%d" % int.from_bytes(answer[at : at + 8], "big") for at in places]


class BareSocket:
    """One connection that speaks the protocol with bytes that were made beforehand."""

    def __init__(self, url: str, cases: dict[str, list[Statement]]) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = b"\0\3\0\0user\0%b\0database\0%b\0\0" % ((parts.username or "").encode(), parts.path[1:].encode())
        self._socket.sendall(struct.pack("!i", len(start) + 4) + start)
        self._answer()
        self._cases = {case: [asked(one) for one in some] for case, some in cases.items()}
        self._places: dict[tuple[str, int], Place] = {}
        self._fences: dict[bytes, list[bytes]] = {}

    def run(self, case: str, some: list[Order]) -> None:
        """Run calls one after the other, or one batch."""
        if case.startswith("batch"):
            self._run(case, NAME.encode(), some[0]["id"][: len(NAME)].encode(), len(some))
        else:
            old = (FAILING if case in {"failed call", "its retry"} else FIRST).encode()
            for order in some:
                self._run(case, old, order["id"].encode(), 1)

    def _run(self, case: str, old: bytes, new: bytes, count: int) -> None:
        fences = self._fences.get(new, [])
        for number, template in enumerate(self._cases[case]):
            mine = template.replace(old, new)
            if fences:
                parts = mine.split(MARK.encode())
                mine = b"".join([part for pair in zip(parts, cycle(fences)) for part in pair][: 2 * len(parts) - 1])
            self._socket.sendall(mine)
            answer = self._answer()
            place = self._places.get((case, number))
            if place is None:
                assert b"C\0\0\0" in answer, answer
                place = self._places[case, number] = Place.of(answer)
            fences = place.fences(answer, count)
        self._fences[new] = fences

    def _answer(self) -> bytes:
        answer = self._socket.recv(65536)
        while not answer.endswith(READY):
            more = self._socket.recv(65536)
            assert more, f"the server closed the connection: {answer!r}"
            answer += more
        return answer

    def close(self) -> None:
        """Close it."""
        self._socket.close()
