"""The forms in which a batch runs."""

import asyncio

from onceward.batch.batch import Batch

FORMS = ("blocking", "threads", "tasks", "tasks over threads")


class Form:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.concurrency = 1 if kind == "blocking" else 4

    def batch(self, once, function, **options) -> Batch:
        if self.kind == "tasks":
            plain = function

            async def function(order):
                await asyncio.sleep(0)
                return plain(order)

        options = {"key": "order.id", "name": "b", "concurrency": self.concurrency} | options
        return once.batch(function, **options)

    def run(self, batch, records, **options):
        if self.kind in {"blocking", "threads"}:
            return batch.run(records, **options)
        return asyncio.run(batch.run_async(records, **options))


def never(order):
    raise AssertionError(f"{order} ran again")
