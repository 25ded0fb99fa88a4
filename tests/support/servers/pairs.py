"""A primary and the replica that takes its place, of each database server."""

from servers.mysql import Mariadb, MariadbReplica, Replicated
from servers.mysql_wire import MysqlWire
from servers.postgres import Postgres, Standby
from servers.postgres_wire import Wire


class PostgresPair:
    """PostgreSQL: libpq itself finds the primary."""

    primary, replica, wire = Postgres, Standby, Wire
    now = "SELECT date_part('epoch', clock_timestamp())"

    @staticmethod
    def url(primary: Postgres, standby: Standby, gate: Wire) -> str:
        """Where workers go."""
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        return f"postgresql://postgres@{hosts}/test?target_session_attrs=read-write"

    @staticmethod
    def through(gate: Wire) -> str:
        """Where workers go that find nothing by themselves."""
        return f"postgresql://postgres@127.0.0.1:{gate.port}/test"


class MariadbPair:
    """MariaDB: an address that moves, as that of a service, leads to the primary."""

    primary, replica, wire = Replicated, MariadbReplica, MysqlWire
    now = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"

    @staticmethod
    def url(primary: Mariadb, standby: MariadbReplica, gate: MysqlWire) -> str:
        """Where workers go."""
        return MariadbPair.through(gate)

    @staticmethod
    def through(gate: MysqlWire) -> str:
        """Where workers go that find nothing by themselves."""
        return f"mysql://root@127.0.0.1:{gate.port}/test"


PAIRS = {"postgresql": PostgresPair, "mariadb": MariadbPair}
