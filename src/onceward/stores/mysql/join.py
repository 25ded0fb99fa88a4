"""Which connections of the caller's can hold a transaction of MySQL."""

from typing import Final

from onceward.stores.mysql.session import MysqlSession
from onceward.stores.mysql.store import MysqlStore
from onceward.stores.sql.join import driver_of

_ROOM: Final = "onceward.stores.mysql.session"
_KINDS: Final = {
    "pymysql.Connection": f"{_ROOM}_plain:PymysqlDriver",
    "asyncmy.Connection": f"{_ROOM}_plain:AsyncmyDriver",
    "sqlalchemy.Connection": f"{_ROOM}_sqlalchemy:of_connection",
    "sqlalchemy.Session": f"{_ROOM}_sqlalchemy:of_session",
    "sqlalchemy.AsyncConnection": f"{_ROOM}_sqlalchemy:of_async_connection",
    "sqlalchemy.AsyncSession": f"{_ROOM}_sqlalchemy:of_async_session",
    "django.BaseDatabaseWrapper": f"{_ROOM}_django:DjangoMysqlDriver",
    "django.ConnectionProxy": f"{_ROOM}_django:of_proxy",
}
_KNOWN: Final = (
    "a connection of PyMySQL or asyncmy, a Connection or Session of SQLAlchemy (also its asynchronous ones), or one of "
    "Django's connections"
)


def join(store: MysqlStore, connection: object) -> MysqlSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is none that we know.
        ValueError: it cannot hold a transaction of ours.
    """
    return MysqlSession(store, driver_of(_KINDS, connection, store.plain.conduit.timeout, _KNOWN))
