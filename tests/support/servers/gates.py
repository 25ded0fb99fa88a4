"""A gate before a server, which a test turns to another server, and which can lose replies."""

import contextlib
import socket
import threading
from collections.abc import Callable


class Gate:
    """Forwards bytes to a server.

    Attributes:
        port: where it listens.
        server: the server's port; None cuts off whoever comes.
        loses: asked for each chunk of a reply, whether to cut the client off in its place.
    """

    def __init__(self, port: int) -> None:
        self.server: int | None = port
        self.loses: Callable[[], bool] = lambda: False
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def turn(self, port: int | None) -> None:
        """Cut off all, and forward to another server."""
        self.server = port
        self._cut()

    def close(self) -> None:
        """Cut off all."""
        self.server = None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self.server is None:
                return
            with socket.create_connection(("127.0.0.1", self.server)) as server:
                self._ends += [client, server]
                back = threading.Thread(target=self._pump, args=(server, client, True), daemon=True)
                back.start()
                self._pump(client, server, False)
                back.join()

    def _pump(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if is_reply and self.loses():
                    break
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
