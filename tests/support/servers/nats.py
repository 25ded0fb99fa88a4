"""NATS servers with JetStream for tests, of Debian."""

from servers.needs import needs
from servers.server import Server


class Nats(Server):
    def __init__(self) -> None:
        self._program = needs("nats-server", "apt-get install nats-server")
        super().__init__()
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _command(self):
        return [self._program, "--addr", "127.0.0.1", "--port", self.port, "-js", "-sd", self._scratch]
