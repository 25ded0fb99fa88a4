"""The limit: the statements of a guard over a bare socket.

It sends bytes that were made beforehand, and looks at nothing in an answer but a claim's fence. No client can take less.
"""

import socket
import struct
from typing import Any
from urllib.parse import urlsplit

from postgres_replay import FAILING, FENCE, FIRST, NAME, Order, Statement

READY = b"Z\0\0\0\5I"


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
    values = b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(text := written(value))) + text
        for value in one.values
    )
    bound = b"\0\0" + struct.pack("!hh", 0, len(one.values)) + values + struct.pack("!hh", 1, 1)
    return (
        message(b"P", b"\0" + one.text.encode() + b"\0\0\0")
        + message(b"B", bound)
        + message(b"D", b"P\0")
        + message(b"E", b"\0\0\0\0\0")
        + message(b"S", b"")
    )


def fence_at(answer: bytes) -> int:
    """Return where the fence of an answer's first row begins; it is in the same place in all answers of its statement."""
    at = 0
    while answer[at : at + 1] != b"D":
        at += 1 + int.from_bytes(answer[at + 1 : at + 5], "big")
    at += 7
    for _ in range(FENCE):
        at += 4 + max(0, int.from_bytes(answer[at : at + 4], "big", signed=True))
    return at + 4


class BareSocket:
    """One connection that speaks the protocol with bytes that were made beforehand."""

    def __init__(self, url: str, cases: dict[str, list[Statement]]) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = b"\0\3\0\0user\0%b\0database\0%b\0\0" % ((parts.username or "").encode(), parts.path[1:].encode())
        self._socket.sendall(struct.pack("!i", len(start) + 4) + start)
        self._answer()
        self._cases = {case: [(asked(one), one.fence) for one in some] for case, some in cases.items()}
        self._places: dict[tuple[str, int], int] = {}
        self._fences: dict[bytes, int] = {}

    def run(self, case: str, some: list[Order]) -> None:
        """Run calls one after the other, or one batch."""
        if case.startswith("batch"):
            self._run(case, NAME.encode(), some[0]["id"][: len(NAME)].encode())
        else:
            old = (FAILING if case in {"failed call", "its retry"} else FIRST).encode()
            for order in some:
                self._run(case, old, order["id"].encode())

    def _run(self, case: str, old: bytes, new: bytes) -> None:
        fence = self._fences.get(new, 0)
        for number, (bytes_, seen) in enumerate(self._cases[case]):
            mine = bytes_.replace(old, new)
            for more in (0, 1):
                mine = mine.replace(b"%d" % (seen + more), b"%d" % (fence + more))
            self._socket.sendall(mine)
            answer = self._answer()
            at = self._places.get((case, number))
            if at is None:
                assert b"C\0\0\0" in answer, answer
                at = self._places[case, number] = fence_at(answer)
            fence = int.from_bytes(answer[at : at + 8], "big")
        self._fences[new] = fence

    def _answer(self) -> bytes:
        answer = self._socket.recv(65536)
        while not answer.endswith(READY):
            answer += self._socket.recv(65536)
        return answer

    def close(self) -> None:
        """Close it."""
        self._socket.close()
