"""The handler of a batch, and its options: what one call of it (``runner.py``) needs to know."""

from collections.abc import Callable, Hashable
from typing import Any, Unpack

from onceward.batch.outcomes import BatchOutcome, Reading
from onceward.batch.threads import LoopTurns, awaitable
from onceward.claim.factory import GuardFactory, refuse_guarded
from onceward.core.arguments import check_count, check_hook
from onceward.core.policy import Options

Read = Callable[[Any], Reading]
Group = Callable[[Any], Hashable | None]


class BatchHandler:
    """A handler of records.

    Adapters make a batch directly and pass ``read(record)``, which reads a record; if it raises, the record is malformed. Any
    thread of the batch calls ``heard`` with each recorded outcome. If ``values`` is false, large results in S3 are not fetched. For the other arguments, see :meth:`Once.batch`.

    Attributes:
        typical: seconds per handler, a moving average.
    """

    def __init__(
        self,
        guards: GuardFactory,
        function: Callable[..., object],
        read: Read,
        *,
        name: str | None = None,
        concurrency: int = 1,
        group: Group | None = None,
        heard: Callable[[BatchOutcome], None] | None = None,
        values: bool = True,
        **options: Unpack[Options],
    ) -> None:
        check_count("concurrency", concurrency)
        if group is not None:
            check_hook("group", group)
        # A busy key is reported, and no call is answered from memory.
        refuse_guarded(function)
        self.guard, handler = guards.for_function(function, name, {**options, "on_busy": "raise", "cache": 0})
        self.name = self.guard.name
        self.read = read
        self.group = group
        self.heard = heard
        self.concurrency = concurrency
        self.values = values
        self.typical = 0.0  # seconds per handler, a moving average
        self.is_async = handler.is_async
        self.function = function
        self.turns = LoopTurns(concurrency)
        self.awaitable = awaitable(function, self.turns.in_thread)
        self.parameter = handler.parameter
