"""The service as a process of its own, a client that speaks plain HTTP to it, and a proxy that loses answers."""

import contextlib
import http.client
import json
import os
import re
import secrets
import ssl
import subprocess
import sys
import threading
from typing import NamedTuple

from places import SOURCES
from servers.needs import free_port
from servers.orphans import watched

PATIENCE = 60  # seconds that anything may take on a busy machine


class Answered(NamedTuple):
    status: int
    body: dict
    headers: dict

    @property
    def problem(self) -> str:
        return self.body["type"].rpartition(":")[2]


class Service:
    """A running service. Its standard error is kept in ``said``."""

    def __init__(self, url: str, *options: str):
        self.url = url
        self._command = [
            sys.executable,
            "-m",
            "onceward",
            "serve",
            "--store",
            url,
            *options,
            "--port",
            str(free_port()),
        ]
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        """Start it, or start it again at the same place."""
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        self.process = watched(subprocess.Popen(self._command, env=environment, stderr=subprocess.PIPE, text=True))
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"serving at (\S+)", line):
                self.place = found[1].rstrip("/")
                break
        else:
            raise AssertionError("".join(self.said))
        self._listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, lines) -> None:
        with lines:
            self.said.extend(lines)

    @property
    def api(self) -> "Api":
        return Api(self.place)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serving(url: str, *options: str, **more):
    made = Service(url, *options, **more)
    try:
        yield made
    finally:
        made.kill()


def new_id() -> str:
    return secrets.token_hex(16)


class Api:
    """Speaks plain HTTP, one connection for each request."""

    def __init__(self, place: str, namespace: str = "shop", token: str | None = None, trust: str | None = None):
        self.place, self.namespace, self.token, self._trust = place, namespace, token, trust

    def connection(self):
        scheme, _, host = self.place.partition("://")
        if scheme == "https":
            context = ssl.create_default_context(cafile=self._trust)
            return http.client.HTTPSConnection(host, timeout=PATIENCE, context=context)
        return http.client.HTTPConnection(host, timeout=PATIENCE)

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answered:
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        return Answered(response.status, json.loads(data or b"{}"), {k.lower(): v for k, v in response.getheaders()})

    def __call__(self, action: str, **fields) -> Answered:
        path, body = f"/v1/{self.namespace}/{action}", json.dumps(fields).encode()
        return self.send("POST", path, body, **{"Content-Type": "application/json"})

    def claimed(self, key, **options) -> dict:
        """Claim a key, which must succeed. Return what names the claim."""
        claim = {"key": key, "id": new_id()}
        answer = self("claim", **claim, **options)
        assert answer.status == 201, answer
        return {**claim, "fence": answer.body["fence"]}
