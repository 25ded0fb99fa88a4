"""The code of docs/how-to/observing.md runs as it is printed, and its tables name what there is."""

import json
import logging
import re
import sys
import urllib.request
from types import SimpleNamespace

import pytest
import yaml
from opentelemetry import trace

from places import DOCS, ROOT
from queues.lambda_events import sqs
from servers.needs import free_port
from tables import each

sys.path.insert(0, str(DOCS))

PAGE = (ROOT / "docs" / "how-to" / "observing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def _level():
    log = logging.getLogger("onceward")
    before = log.level
    yield
    log.setLevel(before)


@pytest.mark.usefixtures("_level")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    port, told = free_port(), []
    names = {
        "bank": SimpleNamespace(pay=lambda order: f"paid {order['id']}"),
        "statsd": SimpleNamespace(
            increment=lambda name, tags: told.append(tags["kind"]), timing=lambda name, ran, tags: told.append(name)
        ),
        "PORT": port,
    }
    exec(compile(BLOCKS[0], "docs/how-to/observing.md", "exec"), names)
    assert names["charge"]({"id": "1"}) == names["charge"]({"id": "1"}) == "paid 1"
    assert not trace.get_current_span().is_recording()
    exec(
        compile(
            BLOCKS[1].replace("start_http_server(PORT)", "server = start_http_server(PORT, '127.0.0.1')"), "o", "exec"
        ),
        names,
    )
    names["once"].run("k", int)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        scraped = answer.read().decode()
    server, thread = names["server"]
    server.shutdown()
    server.server_close()
    thread.join()
    assert 'onceward_calls_total{handler="builtins.int",outcome="completed"} 1.0' in scraped
    assert 'onceward_keys{status="parked"} 0.0' in scraped
    exec(compile(BLOCKS[2], "docs/how-to/observing.md", "exec"), names)
    capsys.readouterr()
    names["pay"](sqs({"order": 1, "id": "o1"}))
    names["every_five_minutes"]({}, None)
    line, gauges = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["service"], line["handler"], line["Completed"]) == ("payments", "pay", 1)
    assert gauges["KeysParked"] == 0
    for block in BLOCKS[3:]:
        exec(compile(block, "docs/how-to/observing.md", "exec"), names)
    names["audit"].run("a", int)
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["claimed", "completed"]
    names["counted"].run("b", int)
    assert told == ["claimed", "completed", "onceward.ran"]


@each("file", ["prometheus-alerts.yml", "cloudwatch-alarms.yaml"])
def test_every_alert_and_alarm_is_on_the_page(file):
    told = yaml.safe_load((ROOT / "observability" / file).read_text())
    names = told["Resources"] if "Resources" in told else [rule["alert"] for rule in told["groups"][0]["rules"]]
    for name in names:
        assert f"`{name}`" in PAGE, name
