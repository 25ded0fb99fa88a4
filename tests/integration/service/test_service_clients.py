"""The clients in Go and Java do what docs/reference/service.md prints."""

import re
import subprocess

import pytest

from places import DOCS, ROOT
from servers.needs import needs
from web.services import Api, serving

LONG = 900  # seconds: Go compiles its HTTP library first
PAGE = (DOCS / "reference" / "service.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_client_in_go_works_once(tmp_path):
    go = needs("go", "https://go.dev/doc/install")

    def build(source):
        done = subprocess.run(
            [go, "build", "-o", "claim", source.name], cwd=tmp_path, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == 0, done.stderr
        return [tmp_path / "claim"]

    works_once(tmp_path, "go/claim.go", build, "go run claim.go order-1")


@pytest.mark.nightly
def test_the_client_in_java_works_once(tmp_path):
    java = needs("java", "apt-get install default-jdk-headless")
    works_once(tmp_path, "java/Claim.java", lambda source: [java, source], "java Claim.java order-2")


def works_once(folder, client, build, shown):
    source = folder / client.rpartition("/")[2]
    with serving(f"sqlite:///{folder}/ledger.db") as service:
        text = (ROOT / "clients" / client).read_text(encoding="utf-8")
        source.write_text(text.replace("http://127.0.0.1:8767", service.place))
        command, key = build(source), shown.rpartition(" ")[2]
        runs = [subprocess.run([*command, key], capture_output=True, text=True, timeout=LONG) for _ in range(2)]
        assert [run.stdout.strip() for run in runs] == re.findall(rf"^\$ {re.escape(shown)}\n(.*)$", PAGE, re.MULTILINE)
        assert Api(service.place)("look", key=key).body["attempt"] == 1


def test_a_request_that_offers_an_upgrade_keeps_its_body(tmp_path):
    """Java's HttpClient offers HTTP/2 in each request without TLS."""
    with serving(f"sqlite:///{tmp_path}/ledger.db") as service:
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
        body = b'{"key": "k"}'
        told = service.api.send("POST", "/v1/shop/look", body, **offer, **{"Content-Type": "application/json"})
        assert (told.status, told.problem) == (404, "not-found")
        assert "Nothing is recorded" in told.body["detail"]
