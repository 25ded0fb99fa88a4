"""PostgreSQL's errors and their fixes, by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html)."""

from typing import Final

from onceward.stores.sql.refusals import ServerErrors

LOCKED: Final = "55P03"  # lock_not_available
CANCELED: Final = "57014"  # query_canceled: by statement_timeout, which can be shorter than a wait of ours
# A prepared statement that is gone (a pooler between has reset the session), whose table was altered, or whose name an interrupted
# request has used: all before it ran.
_STALE: Final = frozenset({"26000", "0A000", "42P05"})
ANEW: Final = (
    frozenset({"40001", "40P01"}) | _STALE
)  # serialization_failure, deadlock_detected: the statement starts anew
# A lane is left: its statements are stale, or its server, or session, takes no writes now.
LEFT: Final = _STALE | {"25006"}
NO_TABLE: Final = frozenset({"42P01", "3F000"})  # undefined_table, invalid_schema_name
DENIED: Final = "42501"

_FIXES: Final = {
    DENIED: "grant this role SELECT, INSERT, UPDATE and DELETE on the table and on its _meta table (docs/reference/postgres.md)",
    "42P01": "there is no such table: make it with `onceward init --store '{url}'`, or check table= and schema=",
    "3F000": "there is no such schema: make it with `onceward init --store '{url}'`, or check schema=",
    "42703": "the table lacks a column: run `onceward migrate --store '{url}'`",
    "25006": "this server is a standby or read-only: give the address of the primary, or target_session_attrs=read-write",
    "54000": "the key is too long for an index: a key may have about 2,600 bytes",
    "28P01": "check the user and the password",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "there is no such database: check the URL",
    "53100": "the server's disk is full",
}
# Classes after which the same request may succeed: connection, rollback, resources, the operator's intervention, system.
# 25006 is a standby: a failover ends it.
FAULTS: Final = ServerErrors(
    "PostgreSQL", LOCKED, ANEW, transient=frozenset({"08", "40", "53", "57", "58", "25006"}), fixes=_FIXES
)
