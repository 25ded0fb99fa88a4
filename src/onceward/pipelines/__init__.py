"""Pipelines from a YAML file: one source, steps, sinks, and guards around all of it or any part.

A pipeline becomes one handler, which any worker and any handler of Lambda can call::

    pipeline = load("orders.yaml")
    worker = SqsWorker(pipeline.once, "orders", pipeline.handler, **pipeline.options)

**How it runs.** Each delivery runs under one claim: that of the file's ``guard``, else that of the delivery's own key. Steps
without an effect outside (``map``, ``filter``, ``switch``) run on each attempt and give the same result. An effect (``call``,
``run``, ``http``) is a recorded step of the claim (:meth:`onceward.Claim.step_async`): a later attempt gets its recorded result.
What a crash between an effect and its record means is the step's ``on_lapse``: make it again with the same derived key, park
the key, or find out. A guard around a part is a claim of its own. Sinks stand on the outbox, so a message leaves
exactly when the claim completes.

**How it is made.** ``marks`` reads the YAML with places, ``reading`` makes the model of it (``model``), and ``pipeline`` builds
what runs. Steps, sinks and sources are one class each, with a line in a table: see ``kit.py`` and ``flow.py``. They are built with a ``kit``, which notes each mistake with its place.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.pipelines.marks import PipelineInvalid
    from onceward.pipelines.on_lambda import lambda_handler
    from onceward.pipelines.pipeline import Pipeline, load

__all__ = ["Pipeline", "PipelineInvalid", "lambda_handler", "load"]

__getattr__, __dir__ = lazily(
    __name__, {".marks": ("PipelineInvalid",), ".on_lambda": ("lambda_handler",), ".pipeline": ("Pipeline", "load")}
)
