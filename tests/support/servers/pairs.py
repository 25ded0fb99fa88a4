"""A primary and the replica that takes its place, of each database server."""

from typing import NamedTuple

from servers.mysql import MariadbReplica, Replicated
from servers.postgres import Postgres, Standby
from servers.wires import MysqlWire, Wire


class Pair(NamedTuple):
    """Kinds of servers; ``now`` asks for a server's time."""

    primary: type
    replica: type
    wire: type[Wire]
    now: str
    place: str

    def through(self, gate: Wire) -> str:
        """Where workers go that find nothing by themselves: an address that moves, as that of a service, leads to the primary."""
        return self.place.format(f"127.0.0.1:{gate.port}")

    def url(self, primary: Postgres, standby: Standby, gate: Wire) -> str:
        """Where workers go; libpq itself finds the primary."""
        if self.primary is not Postgres:
            return self.through(gate)
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        return f"{self.place.format(hosts)}?target_session_attrs=read-write"


_NOW = "SELECT date_part('epoch', clock_timestamp())"
PAIRS = {
    "postgresql": Pair(Postgres, Standby, Wire, _NOW, "postgresql://postgres@{}/test"),
    "mariadb": Pair(Replicated, MariadbReplica, MysqlWire, "SELECT UNIX_TIMESTAMP(SYSDATE(6))", "mysql://root@{}/test"),
}
