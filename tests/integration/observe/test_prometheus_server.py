"""A real Prometheus scrapes a process with a ledger."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from onceward import Once
from onceward.observe.prometheus import PrometheusLedger, PrometheusMetrics
from onceward.stores.gauges import LedgerGauges
from servers.needs import free_port, listens, needs
from servers.orphans import watched

PATIENCE = 60.0  # seconds that a scrape may take on a slow machine


def _wait_until_ready(url):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except urllib.error.HTTPError:  # 503 while it opens its storage
            assert time.monotonic() < end, "Prometheus is not ready"
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def scraped(tmp_path):
    """Makes a Prometheus that scrapes a port, and returns what asks it: an expression's values by labels."""
    binary = needs("prometheus", "apt-get install prometheus")
    started = []

    def start(port):
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: shop, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
        )
        own = free_port()
        command = [binary, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{own}"]
        process = subprocess.Popen([*command, f"--storage.tsdb.path={tmp_path}/tsdb", "--log.level=error"])
        started.append(watched(process))
        assert listens(own, process)
        _wait_until_ready(f"http://127.0.0.1:{own}/-/ready")

        def ask(expression):
            url = f"http://127.0.0.1:{own}/api/v1/query?query={urllib.parse.quote(expression)}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                found = json.load(answer)["data"]["result"]
            return {
                tuple(
                    value
                    for name, value in sorted(one["metric"].items())
                    if name not in {"__name__", "instance", "job"}
                ): float(one["value"][1])
                for one in found
            }

        return ask

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_real_prometheus_scrapes_what_happened(scraped):
    registry = CollectorRegistry()
    once = Once("memory:", name="n", observe=[PrometheusMetrics(registry)])
    PrometheusLedger(LedgerGauges(once, every=0.0, scan=True), registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        for key in "aab":
            once.run(key, int)
        once.acquire("p", name="n").park("broken")
        ask = scraped(server.server_port)
        end = time.monotonic() + PATIENCE
        while not (calls := ask("onceward_calls_total")):
            assert time.monotonic() < end, "nothing was scraped"
            time.sleep(0.05)
        assert calls == {("n", "completed"): 2, ("n", "replayed"): 1, ("n", "parked"): 1}
        assert ask("onceward_handler_duration_seconds_count") == {("n",): 3}
        assert ask('onceward_handler_duration_seconds_bucket{le="+Inf"}') == {("n", "+Inf"): 3}
        assert ask("onceward_keys") == {("in_progress",): 0, ("released",): 0, ("parked",): 1, ("lapsed",): 0}
        requests = ask("sum by (action) (onceward_ledger_request_duration_seconds_count)")
        assert requests.keys() >= {("insert",), ("swap",)}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
