"""A lane to MySQL: a connection of PyMySQL for threads, or of asyncmy for coroutines.

A connection that was lost, interrupted or cancelled in the middle of a statement is closed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.sockets import SocketLane
from onceward.stores.mysql.connections import drop, fetch, fetch_async, settings, spoken_error
from onceward.stores.mysql.faults import LEFT
from onceward.stores.sql.limits import shut
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken


class _MysqlLane(SocketLane):
    """What both kinds have in common.

    Args:
        place: what the driver's ``connect`` takes.
        seconds: for one statement.
    """

    def __init__(self, place: Mapping[str, Any], seconds: float) -> None:
        super().__init__()
        self._place, self._seconds = place, seconds


class MysqlLane(_MysqlLane):
    """A lane for threads."""

    def fetch(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another, and return the rows of all."""
        try:
            if not self.is_ready:
                self.close()
                self._wire = pymysql.connect(**self._place, read_timeout=self._seconds, write_timeout=self._seconds)
                fetch(self._wire, [settings(self._wire.get_server_info())])
                self._open()
            return fetch(self._wire, texts)
        except Exception as error:
            raise spoken_error(error) or error from error

    def _close(self, wire: Any, *, friendly: bool) -> None:
        if not friendly:
            shut(wire)
        wire.close()


class AsyncMysqlLane(_MysqlLane):
    """A lane for the coroutines of one event loop."""

    async def fetch(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another, and return the rows of all."""
        try:
            async with asyncio.timeout(self._seconds):
                if not self.is_ready:
                    self.close()
                    import asyncmy  # only coroutines need it

                    self._wire = await asyncmy.connect(**self._place)
                    await fetch_async(self._wire, [settings(self._wire.get_server_info())])
                    self._open()
                return await fetch_async(self._wire, texts)
        except TimeoutError as error:
            raise Broken(f"the server has not answered for {self._seconds:g} s") from error
        except Exception as error:
            raise spoken_error(error) or error from error

    def _close(self, wire: Any, *, friendly: bool) -> None:
        del friendly
        drop(wire)


class MysqlLanes(LedgerLanes[_MysqlLane]):
    """The lanes to one database.

    Args:
        place: what both drivers' ``connect`` take to get there.
        most: lanes, for all threads together and for each event loop.
        timeout: seconds for one statement, for making a connection, and for waiting until one is free.
    """

    def __init__(self, place: Mapping[str, Any], most: int, timeout: float) -> None:
        whole = {"connect_timeout": max(1, round(timeout)), **place, "charset": "utf8mb4", "autocommit": True}
        self._place, self.timeout = whole, timeout
        super().__init__(lambda: MysqlLane(whole, timeout), lambda: AsyncMysqlLane(whole, timeout), most, timeout, LEFT)

    def patient(self, seconds: float) -> "MysqlLanes":
        """Return one lane of its own, with another limit of time for a statement."""
        return MysqlLanes(self._place, 1, seconds)
