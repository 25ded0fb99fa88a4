"""Errors of MySQL and MariaDB and their fixes, by number (mariadb.com/kb/en/mariadb-error-codes)."""

from typing import Final

from onceward.stores.sql.refusals import ServerErrors

LOCKED: Final = "1205"  # a lock wait timeout: the statement was rolled back, the transaction was not
DEADLOCK: Final = "1213"  # the transaction was rolled back
CHANGED: Final = "1020"  # MariaDB's innodb_snapshot_isolation: the row has changed since the snapshot
ANEW: Final = frozenset({DEADLOCK, CHANGED})
NO_TABLE: Final = frozenset({"1146"})
NO_SAVEPOINT: Final = "1305"
THERE: Final = frozenset({"1060", "1061"})  # the column or the index that was to be added
DENIED: Final = frozenset({"1044", "1045", "1142", "1143", "1227", "1370", "1698"})
LEFT: Final = frozenset({"1047", "1290", "1836"})  # it takes no writes now: another server may have its address
LOST: Final = frozenset(
    {"0", "1053", "1152", "1158", "1159", "1160", "1161", "1927", "2006", "2013", "2014", "2055", "4031"}
)

_GRANT: Final = (
    "grant this user SELECT, INSERT, UPDATE and DELETE on the table and its _meta table (docs/reference/mysql.md)"
)
_FIXES: Final = {
    **dict.fromkeys(DENIED, _GRANT),
    "1045": "check the user and the password",
    "1698": "check the user and the password",
    "1146": "there is no such table: make it with `onceward init --store '{url}'`, or check table=",
    "1049": "there is no such database: CREATE DATABASE it, or check the URL",
    "1054": "the table lacks a column: run `onceward migrate --store '{url}'`",
    "1021": "the server's disk is full",
    "1114": "the server's disk or tablespace is full",
    "1153": "raise max_allowed_packet on the server, or lower max_result",
    "1040": "raise max_connections on the server, or lower pool=",
    "1665": "set binlog_format to ROW or MIXED on the server",
    "1242": "SET timestamp, SET NAMES or SET sql_mode was run on the connection: leave these settings as they were",
    "1290": "this server is a replica or read-only: give the address of the primary",
    "1836": "this server is a replica or read-only: give the address of the primary",
}
# After which the same request may succeed: resources, the operator's intervention, a failover, Galera.
_TRANSIENT: Final = frozenset(
    {
        LOCKED,
        *ANEW,
        *LOST,
        "1021",
        "1040",
        "1047",
        "1114",
        "1180",
        "1203",
        "1290",
        "1317",
        "1836",
        "1969",
        "2002",
        "2003",
        "3024",
    }
)
FAULTS: Final = ServerErrors("the server", LOCKED, ANEW, _TRANSIENT, _FIXES)
