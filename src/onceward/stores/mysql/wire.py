"""A connection of PyMySQL that reads answers itself: PyMySQL needs twice the CPU for the one row of a verb.

Sending, time limits and errors are PyMySQL's. The format is of mariadb.com/kb/en/result-set-packets.
"""

from collections.abc import Sequence
from typing import Any, Final

import pymysql
from pymysql.constants import COMMAND
from pymysql.converters import through
from pymysql.err import raise_mysql_exception

from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken

_OK, _ERROR, _END, _FILE, _NULL = 0x00, 0xFF, 0xFE, 0xFB, 0xFB  # first bytes
_FULL: Final = 0xFFFFFF  # bytes of a packet that another one continues
_MORE: Final = 8  # in a status: another result follows
_SIZES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}  # bytes of a larger number, by the byte before it


class LedgerWire(pymysql.Connection):
    """A connection whose answers are rows."""

    def rows(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another, and return the rows of all. Raises the driver's errors, or Broken."""
        found: list[Row] = []
        for text in texts:
            self._execute_command(COMMAND.COM_QUERY, text)
            while self._result_into(found):
                pass
        return found

    def _result_into(self, found: list[Row]) -> bool:
        """Read one result, and tell whether another one follows."""
        data = self._packet()
        first = data[0]
        if first == _OK:
            _, at = _number(data, 1)  # rows that were written
            _, at = _number(data, at)  # the last id
            return bool(data[at] & _MORE)
        if first == _FILE:
            raise Broken("the server asks for a file")
        readers = [self._reader(self._packet()[-6]) for _ in range(_number(data, 0)[0])]
        self._packet()  # the end of the columns
        while True:
            data = self._packet()
            if data[0] == _END and len(data) < 9:
                return bool(data[3] & _MORE)
            found.append(_row(data, readers))

    def _reader(self, kind: int) -> Any:
        """Return what makes a value of a text, by the kind of the column, or None."""
        reader = self.decoders.get(kind)
        return None if reader is through else reader

    def _packet(self) -> bytes:
        """Read a packet. Raises the server's error."""
        whole = b""
        while True:
            head = self._read_bytes(4)
            size = int.from_bytes(head[:3], "little")
            data: bytes = self._read_bytes(size)
            if size < _FULL:
                break
            whole += data
        if whole:
            data = whole + data
        if data[0] == _ERROR:
            raise_mysql_exception(data)
        return data


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at this place, and the place after it."""
    size = _SIZES.get(data[at])
    if size is None:
        return data[at], at + 1
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(data: bytes, readers: list[Any]) -> Row:
    """Return the values of a row."""
    values: list[Any] = []
    at = 0
    for reader in readers:
        if data[at] == _NULL:
            values.append(None)
            at += 1
            continue
        size, at = _number(data, at)
        text = data[at : at + size].decode()
        at += size
        values.append(text if reader is None else reader(text))
    return values
