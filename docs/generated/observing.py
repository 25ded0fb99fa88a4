"""What is measured, and the events, from the tables of the code."""

import inspect
import re
from pathlib import Path

from generated.markdown import code, table
from onceward.observe import events
from onceward.observe.cloudwatch import metric_of
from onceward.observe.measures import CALLS, GAUGES, MEASURES, Measure

_KIND = re.compile(r'^ {4}"(\w+)",  # (.*)$', re.MULTILINE)


def measures() -> str:
    """Return the table of measures."""
    return table(("OpenTelemetry", "CloudWatch", "what"), [_measure(one) for one in (*MEASURES, *GAUGES)])


def _measure(one: Measure) -> tuple[str, str, str]:
    name = code(metric_of(one)) if one in MEASURES and one is not CALLS else ""  # the page tells those of the others
    labels = ", ".join(code(label) for label in one.labels if label != "handler")
    return code(one.name), name, f"{one.help}; by {labels}" if labels else one.help


def kinds() -> str:
    """Return the table of events, with what the code says beside each kind."""
    return table(("`kind`", "what happened"), [(code(kind), text) for kind, text in _KIND.findall(_source())])


def _source() -> str:
    return Path(inspect.getfile(events)).read_text(encoding="utf-8")
