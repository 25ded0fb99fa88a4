"""Batches of FastStream: their messages are claimed together, handled one by one, and recorded together."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, Final

from onceward.batch.batch import Batch
from onceward.consumers.delivery import Delivery
from onceward.consumers.reader import DeliveryReader
from onceward.core.policy import Options
from onceward.faststream.settlement import Settlement
from onceward.keys.reading import KeySource
from onceward.once import Once

_log: Final = logging.getLogger("onceward")


class HandlerBatch:
    """The batch of one handler, made when a subscriber needs it. The arguments are those of ``exactly``."""

    def __init__(
        self,
        once: Once,
        function: Callable[..., object],
        key: KeySource,
        fingerprint: KeySource | bool | None,
        name: str | None,
        concurrency: int,
        options: Options,
    ) -> None:
        self._once, self._function, self._name = once, function, name
        self._key, self._fingerprint = key, fingerprint
        self._concurrency, self._options = concurrency, options
        self._batch: Batch | None = None

    def open(self, *, ordered: bool) -> None:
        """Make the batch; raises TypeError if the handler takes more than a message and its claim."""
        self._batch = self._batch or Batch(
            self._once.guards,
            self._function,
            DeliveryReader(self._function, self._key, self._fingerprint).read,
            name=self._name,
            concurrency=self._concurrency,
            group=_group if ordered else None,
            values=False,
            **self._options,
        )

    async def handle(self, settlement: Settlement, deliveries: list[Delivery]) -> None:
        """Handle the messages of a batch, and settle each."""
        assert self._batch is not None
        ready = [delivery for delivery in deliveries if await settlement.ready(delivery)]
        for outcome in await self._batch.run_async(ready):
            delivery: Any = outcome.record
            if outcome.status == "failed":
                _log.error("%s: message %s failed", settlement.source, delivery.id, exc_info=outcome.error)
            await settlement.settle(delivery, outcome)


def _group(delivery: Delivery) -> Hashable | None:
    return delivery.group
