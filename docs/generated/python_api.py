"""The Python API: each public module, with the docstrings of its public names."""

import inspect
from importlib import import_module
from pathlib import Path

import onceward
from generated.docstrings import plain

_SOURCE = Path(onceward.__file__).parent
_INTERNAL = {"onceward.aws.templates"}
_MODULES = {  # what is public in modules that list nothing
    "onceward.web.flask": ("answer", "idempotent"),
    "onceward.web.users": ("django_user", "rest_framework_user", "starlette_user"),
    "onceward.consumers.worker": ("Worker",),
    "onceward.observe.otel_traces": ("OtelTraces",),
    "onceward.observe.otel_metrics": ("OtelMetrics", "observe_ledger"),
    "onceward.observe.prometheus": ("PrometheusLedger", "PrometheusMetrics"),
    "onceward.observe.cloudwatch": ("EmbeddedMetrics",),
    "onceward.observe.json_lines": ("JsonLines",),
    "onceward.stores.sqlite": ("SqliteStore",),
    "onceward.stores.gauges": ("LedgerGauges",),
    "onceward.testing.crashes": ("CrashOptions",),
    "onceward.stores.reconciling": ("Mismatched", "Naming", "mismatches"),
    "onceward.web.webhooks.starlette": ("endpoint",),
    "onceward.web.webhooks.flask": ("view",),
    "onceward.web.webhooks.django": ("view",),
    "onceward.stores.dynamodb.powertools": ("powertools_key", "powertools_name"),
}
_LISTED = (
    "onceward.alembic",
    "onceward.cloudevents",
    "onceward.web.fastapi",
    "onceward.web.django",
    "onceward.django.test",
    "onceward.testing.conformance",
)  # files with an __all__


def _packages() -> set[str]:
    """Return the packages that list their public names."""
    found = [path for path in _SOURCE.rglob("__init__.py") if "\n__all__ = " in path.read_text(encoding="utf-8")]
    return {".".join(("onceward", *path.parent.relative_to(_SOURCE).parts)) for path in found} - _INTERNAL


def _names(module: str) -> list[str]:
    public = _MODULES.get(module) or import_module(module).__all__
    return sorted(public, key=lambda name: (not name[0].isupper() or name.isupper(), name))


PUBLIC = {module: _names(module) for module in sorted({*_packages(), *_MODULES, *_LISTED})}


def page() -> str:
    """Return the page."""
    return "---\nsearch:\n  boost: 0.5\n---\n# Python API\n\n" + "\n".join(map(_module, PUBLIC))


def _module(module: str) -> str:
    about = plain((inspect.getdoc(import_module(module)) or "").partition("\n\n")[0])
    entries = "\n".join(f"::: {module}.{name}\n" for name in PUBLIC[module])
    return f"## {module}\n\n{about}\n\n{entries}"
