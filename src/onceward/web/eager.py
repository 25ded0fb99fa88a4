"""A task whose coroutine begins at once, in the middle of another: what never waits is through without a turn of the loop.

From Python 3.12 on asyncio has such tasks (``eager_start``). For Python 3.11 the same is made of what asyncio documents for
those who bring tasks of their own (docs.python.org/3/library/asyncio-extending.html).
"""

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar

T = TypeVar("T")
_NOTHING: Final = object()

if sys.version_info >= (3, 12):

    def begin(coroutine: Coroutine[Any, Any, T], context: Context) -> asyncio.Task[T] | None:
        """Run ``coroutine`` to its first wait, as a task of the running loop and in ``context``.

        Returns:
            The task; None when it is through already, and what it raises then is raised here.
        """
        task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), context=context, eager_start=True)
        if not task.done():
            return task
        try:
            task.result()
        finally:
            del task  # it holds its error, which holds this frame
        return None

else:
    from asyncio import _enter_task, _leave_task  # documented, see above

    def begin(coroutine: Coroutine[Any, Any, T], context: Context) -> asyncio.Task[T] | None:
        """Run ``coroutine`` to its first wait, as a task of the running loop and in ``context``.

        Returns:
            The task; None when it is through already, and what it raises then is raised here.
        """
        loop = asyncio.get_running_loop()
        begun = _Begun(coroutine)
        task: asyncio.Task[T] = asyncio.Task(begun, loop=loop, name="onceward-http", context=context)
        outer = asyncio.current_task(loop)
        assert outer is not None  # ASGI servers call applications in tasks
        _leave_task(loop, outer)
        _enter_task(loop, task)
        try:
            begun.wait_for(context.run(coroutine.send, None))
        except StopIteration:
            begun.over = True  # and so is the task, with the loop's next turn
            if task.cancelling():
                raise asyncio.CancelledError from None  # as a task ends that is cancelled in its last step
            return None
        except BaseException:
            begun.over = True
            raise
        finally:
            _leave_task(loop, task)
            _enter_task(loop, outer)
        return task

    class _Begun(Coroutine[Any, Any, T]):
        """A coroutine whose first step was taken before its task asks for it."""

        over = False
        _first: Any = _NOTHING  # what the first step has yielded, until the task has taken it in

        def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
            self._coroutine = coroutine

        def wait_for(self, first: Any) -> None:
            """Take in what the first step has yielded."""
            if asyncio.isfuture(first):
                first._asyncio_future_blocking = False  # noqa: SLF001 - a future's protocol; others may await it, too
            self._first = first

        def send(self, value: Any) -> Any:
            """Go on, and return what to wait for."""
            if self._first is not _NOTHING:
                first, self._first = self._first, _NOTHING
                return _awaited(first)
            if self.over:
                raise StopIteration
            return self._coroutine.send(value)

        def throw(self, error: Any, *_: Any) -> Any:
            """Go on with an error, which before the second step is a cancellation, and return what to wait for."""
            if self.over:
                raise StopIteration
            first, self._first = self._first, _NOTHING
            if asyncio.isfuture(first) and first.cancel(*error.args):
                return _awaited(first)  # as a task does that is cancelled as it waits
            return self._coroutine.throw(error)

        def close(self) -> None:
            """Close it."""
            self._coroutine.close()

        def __await__(self) -> Generator[Any, None, T]:
            return self._coroutine.__await__()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._coroutine, name)  # cr_frame and the like, for those who look at tasks

    def _awaited(first: Any) -> Any:
        if asyncio.isfuture(first):
            first._asyncio_future_blocking = True  # noqa: SLF001 - as when it is awaited, which the task looks for
        return first
