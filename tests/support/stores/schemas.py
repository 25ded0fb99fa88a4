"""All that a database says of a ledger's tables."""

import sqlite3

import psycopg
import pymysql

from onceward import Once
from onceward.core.drivers import drive
from onceward.stores import url_parts
from onceward.stores.capabilities import PROVISION
from onceward.stores.mysql import place_of

_COLUMNS = (
    "SELECT table_name, column_name, data_type, is_nullable, collation_name, ordinal_position FROM information_schema.columns "
    "WHERE table_name LIKE 'onceward%' ORDER BY 1, 2"
)
_INDEXES = "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'onceward%' ORDER BY 1"
_COMMENTS = "SELECT objsubid, description FROM pg_description WHERE objoid = to_regclass('onceward') ORDER BY 1"
_META = "SELECT name, value FROM onceward_meta ORDER BY 1"


def schema_of(url):
    if url.startswith("sqlite"):
        with sqlite3.connect(url.partition("//")[2].replace("//", "/")) as connection:
            found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE tbl_name LIKE 'onceward%'")
            return sorted(found, key=str)
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            return [connection.execute(query).fetchall() for query in (_COLUMNS, _INDEXES, _COMMENTS, _META)]
    with pymysql.connect(**place_of(*url_parts(url))).cursor() as cursor:
        found = []
        for statement in ("SHOW CREATE TABLE onceward", "SHOW CREATE TABLE onceward_meta", _META):
            cursor.execute(statement)
            found.append(cursor.fetchall())
        return found


def provisioned(url):
    """Make a ledger as ``onceward init`` does, and return its schema."""
    once = Once(url)
    drive(PROVISION.require(once.store)(frozenset()), once.store)
    once.close()
    return schema_of(url)
