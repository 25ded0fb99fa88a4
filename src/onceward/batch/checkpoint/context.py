"""The context that ``once.checkpoint(...)`` returns."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onceward.batch.checkpoint.blocking import Checkpoint
from onceward.batch.checkpoint.limits import Limits
from onceward.batch.checkpoint.sink import Flush
from onceward.claim.guard import Guard
from onceward.claim.handler import handler_of
from onceward.keys.reading import KeyReader

if TYPE_CHECKING:
    from onceward.batch.checkpoint.awaiting import AsyncCheckpoint

T = TypeVar("T")


class CheckpointContext(Generic[T]):
    """The context that ``once.checkpoint(...)`` returns. Enter it once, with ``with`` or ``async with``."""

    def __init__(
        self, guard: Guard, keys: KeyReader, limits: Limits[T], flush: Flush[T], on_done: Flush[T] | None
    ) -> None:
        self._arguments = (guard, keys, limits, flush, on_done)
        self._is_async = any(handler_of(function).is_async for function in (flush, on_done) if function is not None)
        self._sink: Any = None

    def __enter__(self) -> "Checkpoint[T]":
        if self._is_async:
            raise TypeError("flush or on_done is a coroutine function: use `async with once.checkpoint(...)`")
        self._check_new()
        self._sink = sink = Checkpoint(*self._arguments)
        return sink

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sink.close(error)
        except BaseException:
            self._sink.drop()  # an interrupt came before these were flushed: renew them no more
            raise

    async def __aenter__(self) -> "AsyncCheckpoint[T]":
        from onceward.batch.checkpoint.awaiting import AsyncCheckpoint

        self._check_new()
        self._sink = sink = AsyncCheckpoint(*self._arguments)
        return sink

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._sink.close(error)
        except BaseException:
            self._sink.drop()
            raise

    def _check_new(self) -> None:
        if self._sink is not None:
            raise RuntimeError("this once.checkpoint(...) was entered before: make a new one for each block")
