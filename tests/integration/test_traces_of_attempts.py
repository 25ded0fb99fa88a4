"""Each attempt's trace, from a span of OpenTelemetry to `onceward show --json` and the dashboard, on every store."""

import json
import re

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from commands.command_line import Cli
from onceward import Once
from onceward.dashboard import dashboard
from onceward.observe.otel_traces import OtelTraces
from waiting import until
from web.visitors import DashboardVisitor

pytestmark = pytest.mark.sampled(every_url=2)

KEY = "shop:order-7"


@pytest.fixture
def once(every_url):
    made = Once(every_url, name="shop", observe=[OtelTraces(TracerProvider())])
    yield made
    made.close()


def shown_by_command(url, folder):
    told = Cli(folder).run("show", KEY, "--json", "--store", url)
    assert told.returncode == 0, told.stderr
    return [(one["outcome"], one["trace"]) for one in json.loads(told.stdout)["history"]]


def shown_on_page(once):
    page = DashboardVisitor(dashboard(once)).get("/record", params={"key": KEY}).text
    return re.findall(r'data-name="Trace" class="worker">([^<]*)<', page)[::-1]


@pytest.mark.nightly
def test_each_attempt_is_shown_with_the_trace_of_its_span(once, every_url, tmp_path):
    seen = []

    def handle(fails):
        here = trace.get_current_span().get_span_context()
        seen.append(f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}")
        if fails:
            raise ConnectionError("the bank does not answer")

    with pytest.raises(ConnectionError):
        once.run("order-7", handle, True)
    once.using(lease=3).acquire("order-7")
    seen.append(once.ledger.show(KEY)[0].trace)
    until(lambda: once.ledger.attempts(KEY)[-1].outcome == "LAPSED")
    with pytest.raises(ConnectionError):
        once.run("order-7", handle, True)
    once.run("order-7", handle, False)
    assert len(set(seen)) == 4
    outcomes = ["RELEASED", "LAPSED", "RELEASED", "COMPLETED"]
    assert shown_by_command(every_url, tmp_path) == list(zip(outcomes, seen, strict=True))
    assert shown_on_page(once) == seen


def test_a_hostile_text_in_place_of_a_trace_stays_text():
    once = Once("memory:", name="shop")
    once.acquire("order-7").release("no")
    record = once.store.records[KEY]
    text = record.history.replace(',"fence"', ',"trace":"<img src=x onerror=alert(1)>","fence"')
    once.store.records[KEY] = record._replace(history=text)
    assert shown_on_page(once) == ["&lt;img src=x onerror=alert(1)&gt;"]
