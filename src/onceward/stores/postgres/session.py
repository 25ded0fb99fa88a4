"""The caller's own connection to the ledger's database: an effect on it commits together with its record.

The transaction's id tells whether it is still the one that made the claim. The completion is sent right before the COMMIT.
"""

import os
from collections.abc import Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import Reply
from onceward.errors import StoreError
from onceward.stores.capabilities import AnotherDatabase, Apart, Ended
from onceward.stores.postgres.connections import check_encoding, sqlstate, state_of
from onceward.stores.postgres.faults import FAULTS
from onceward.stores.postgres.inside import PLACE, TRY_LOCK, XID, Inside
from onceward.stores.postgres.queries import OneRow, Query, RawQuery, WriteQuery
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.queries import Row
from onceward.stores.sql.session import Acts, SqlSession

_PATIENCE: Final = "1000"  # milliseconds to wait for somebody's open transaction on a key
_LIBRARIES: Final = frozenset({"psycopg", "psycopg2", "asyncpg"})


class PostgresSession(SqlSession[PostgresStore, Inside]):
    """A connection of the caller to PostgreSQL."""

    faults = FAULTS
    libraries = _LIBRARIES
    state_of = staticmethod(state_of)
    code_of = staticmethod(sqlstate)

    _xid: str | None = None  # of the transaction that made the claim

    def learn(self) -> Steps[Inside]:
        """Ask which schema the ledger is in."""
        yield Apart(OneRow("load", self.store.statements.load, ("?",)))  # makes the tables
        ((schema,),) = yield Apart(RawQuery(PLACE, self.store.names.table))
        return Inside(self.store, schema)

    def attach(self) -> Steps[None]:
        """Use the caller's transaction, on the ledger's database."""
        yield from super().attach()
        check_encoding(self.driver.raw)

    def check_place(self) -> Steps[None]:
        """Check that the connection is to the ledger's database: two sessions cannot have one lock of it."""
        number = int.from_bytes(os.urandom(7), "big")
        yield RawQuery(TRY_LOCK, number)
        if (yield Apart(RawQuery(TRY_LOCK, number)))[0][0]:
            raise AnotherDatabase(
                f"the connection is to another database than the ledger {self.store.url}; effect and record commit "
                "together only in one"
            )

    def begin(self) -> Steps[None]:
        """Begin a transaction, on the ledger's database."""
        self._xid = None
        yield from super().begin()
        check_encoding(self.driver.raw)

    def began_here(self) -> Steps[bool]:
        """Compare the transaction's id. In one that has failed, nobody can: then the aftermath finds out."""
        if self._xid is None or self.trouble is not None:
            return True
        try:
            ((xid,),) = yield RawQuery(XID)
        except StoreError:
            return True
        return bool(xid == self._xid)

    def talk(self, request: object) -> Acts:
        """Do one request of the ledger's, and return its reply."""
        assert isinstance(request, Query)
        if not isinstance(request, RawQuery):
            request.values = (_PATIENCE, *request.values[1:])
        if not isinstance(request, WriteQuery):
            return self._answered(request, (yield "fetch", (self.known.text(request.text), request.values)))
        check_encoding(self.driver.raw)  # the body may have changed it
        if request is self.last:
            rows = yield "fetch", self.known.completing(request)
            return self._made(request, rows[0]) if rows else Reply(False, None, 0.0)
        if self._xid is None and request.kind == "insert" and (rows := (yield "fetch", self.known.claiming(request))):
            return self._made(request, rows[0])
        return self._answered(request, (yield "fetch", (self.known.text(request.text), request.values)))

    def _answered(self, request: Query, rows: Sequence[Row]) -> object:
        """Return the reply that rows are."""
        if isinstance(request, RawQuery):
            return request.reply(rows)
        self._check(rows[0][-2])
        return request.reply([row[:-2] for row in rows if row[1] is not None])

    def _made(self, request: WriteQuery, row: Row) -> Reply:
        """Return the reply to a write that was made by a short statement."""
        now, fence, stamped, xid, _ = row
        self._check(xid)
        return Reply(True, request.write.at(stamped)._replace(fence=fence), now)

    def _check(self, xid: str | None) -> None:
        """Raise Ended if rows come from another transaction than the first ones."""
        if self._xid is None:
            self._xid = xid
        elif xid != self._xid:
            raise Ended("the transaction that made the claim is over")
