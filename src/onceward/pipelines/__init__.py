"""Pipelines from a YAML file: one source, steps, sinks, and guards around all of it or any part.

A pipeline becomes one handler, which any worker and any handler of Lambda can call::

    pipeline = load("orders.yaml")
    worker = SqsWorker(pipeline.once, "orders", pipeline.handler, **pipeline.options)

**How it runs.** Each delivery runs under one claim: that of the file's ``guard``, else that of the delivery's own key. Steps
without an effect outside (``map``, ``filter``, ``switch``) run on each attempt and give the same result. An effect (``call``,
``run``, ``http``) is a recorded step of the claim (:meth:`onceward.Claim.step_async`): a later attempt gets its recorded result.
What a crash between an effect and its record means is the step's ``on_lapse``: make it again with the same derived key, park
the key, or find out. A guard around a part is a claim of its own (``guards.py``). Sinks stand on the outbox, so a message leaves
exactly when the claim completes.

**How it is made.** ``marks`` reads the YAML with places, ``reading`` makes the model of it (``model``), and ``pipeline`` builds
what runs. Steps, sinks and sources are one class a file, with a line in a table: see ``steps/contract.py``,
``sinks/contract.py`` and ``sources/contract.py``. They are built with a ``kit``, which notes each mistake with its place.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.pipelines.marks import PipelineInvalid
    from onceward.pipelines.on_lambda import lambda_handler
    from onceward.pipelines.pipeline import Pipeline, load

__all__ = ["Pipeline", "PipelineInvalid", "lambda_handler", "load"]
_ELSEWHERE = {
    "Pipeline": "pipeline",
    "PipelineInvalid": "marks",
    "lambda_handler": "on_lambda",
    "load": "pipeline",
}  # loaded on first use


def __getattr__(name: str) -> object:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onceward.pipelines.{_ELSEWHERE[name]}"), name)
