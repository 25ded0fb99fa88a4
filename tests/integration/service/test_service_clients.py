"""The examples in Go of docs/reference/service.md. Those in Java run with the page."""

import re
import subprocess

import pytest

from places import DOCS
from servers.needs import needs
from web.services import Api, serving

LONG = 900  # seconds: Go compiles its HTTP library first


@pytest.mark.nightly
def test_the_example_in_go_works_once(tmp_path):
    go = needs("go", "https://go.dev/doc/install")
    page = (DOCS / "reference" / "service.md").read_text(encoding="utf-8")
    source = re.search(r'```go title="claim.go"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
    shown = re.search(r"^\$ go run claim.go order-1\n(.*?)\n\$ go run claim.go order-1\n(.*?)\n```", page, re.MULTILINE)
    with serving(f"sqlite:///{tmp_path}/ledger.db") as service:
        (tmp_path / "claim.go").write_text(source.replace("http://127.0.0.1:8767", service.place))
        build = [go, "build", "-o", "claim", "claim.go"]
        done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, done.stderr
        runs = [subprocess.run([tmp_path / "claim", "order-1"], capture_output=True, text=True) for _ in range(2)]
        assert [run.stdout.strip() for run in runs] == [shown[1], shown[2]]
        assert Api(service.place)("look", key="order-1").body["attempt"] == 1


def test_a_request_that_offers_an_upgrade_keeps_its_body(tmp_path):
    """Java's HttpClient offers HTTP/2 in each request without TLS."""
    with serving(f"sqlite:///{tmp_path}/ledger.db") as service:
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
        body = b'{"key": "k"}'
        told = service.api.send("POST", "/v1/shop/look", body, **offer, **{"Content-Type": "application/json"})
        assert (told.status, told.problem) == (404, "not-found")
        assert "Nothing is recorded" in told.body["detail"]
