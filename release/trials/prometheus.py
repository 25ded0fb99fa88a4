"""Metrics of a guarded call, as Prometheus reads them."""

from prometheus_client import generate_latest

from onceward import Once
from onceward.observe.prometheus import PrometheusLedger, PrometheusMetrics
from onceward.stores.gauges import LedgerGauges

once = Once("sqlite:///prometheus.db", observe=[PrometheusMetrics()])
PrometheusLedger(LedgerGauges(once))
once.run("k", int)
once.run("k", int)
text = generate_latest().decode()
assert "onceward_calls_total" in text
assert "onceward_keys" in text
