"""A proxy before PostgreSQL that loses a COMMIT, or its reply."""

import contextlib
import socket
import threading
import time


class CommitProxy:
    """Passes everything on. Set ``plan`` for the next COMMIT.

    Plans: "drop" passes it on and loses its reply; "delay" cuts the client off at once and passes it on later; "swallow" loses
    it; "hold" loses it and leaves the server's connection open until ``release()``; "freeze" loses it, and nobody hears more.
    """

    def __init__(self, port):
        self._server = port
        self.plan = None
        self.delay = 1.5
        self.commits = 0
        self._held = []
        self._ends = []
        self._pumps = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                self._ends += [client, server]
                for way in ((server, client, None), (client, server, self._commit)):
                    pump = threading.Thread(target=self._pump, args=way)
                    pump.start()
                    self._pumps.append(pump)

    def _pump(self, source, target, seen):
        held = False
        try:
            while chunk := source.recv(65536):
                if seen is not None and b"COMMIT" in chunk and self.plan is not None:
                    held = seen(source, target, chunk)
                    break
                target.sendall(chunk)
        except OSError:
            pass
        for end in (source, target):
            if end not in self._held and not (held and end is target):
                shut(end)

    def _commit(self, client, server, chunk):
        plan, self.plan = self.plan, None
        self.commits += 1
        if plan == "swallow":
            return False
        if plan == "freeze":
            self._held += [client, server]
            return True
        if plan == "hold":
            self._held.append(server)
            return True
        self._held.append(server)  # until the COMMIT has arrived
        shut(client)
        if plan == "delay":
            time.sleep(self.delay)
        server.sendall(chunk)
        return True

    def release(self):
        """Let the server see that its client is gone."""
        while self._held:
            shut(self._held.pop())

    def close(self):
        shut(self._listener)
        self._accepting.join()
        self.release()
        for end in self._ends:
            shut(end)
        for pump in self._pumps:
            pump.join()
        for end in (self._listener, *self._ends):
            end.close()


def shut(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
