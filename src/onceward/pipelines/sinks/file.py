"""The sink ``file``."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.sinks.appending import LOCKS, Appender
from onceward.pipelines.sinks.contract import SinkAction, SinkSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class FileSink(SinkSettings, kw_only=True):
    """Append messages to a file, each as a line of JSON, and each once.

    Beside the file stands ``FILE.onceward``: it tells which lines are in it, so that a line is not written a second time after a
    crash. Delete both together. Several processes of one machine can write to one file.
    """

    path: Annotated[str, Meta(description="The file. A relative path begins at the folder of this file.", min_length=1)]

    def build(self, kit: "Kit") -> SinkAction:
        if not LOCKS:
            kit.mistake("", "the sink file needs the file locks of Linux or macOS, which this system does not have")
        path = kit.folder / self.path
        if path.is_dir() or not path.parent.is_dir():
            kit.mistake("path", f"{path}: {'a directory' if path.is_dir() else 'its folder does not exist'}")
        appender = Appender(path)

        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            line = message.data if isinstance(message.data, str) else msgspec.json.encode(message.data).decode()
            await call.record(_append, appender, call, f"{line}\n".encode())

        return write


async def _append(appender: Appender, call: "PipelineCall", line: bytes) -> None:
    """Append a line with all others that wait, so that they share one write to the disk."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    appender.waiting.append((call.key(), line, ready))
    if not appender.busy:
        appender.busy = True
        try:
            while appender.waiting:
                batch, appender.waiting = appender.waiting, []
                try:
                    await call.thread(appender.append, [(key, text) for key, text, _ in batch])
                except Exception as error:
                    for _, _, other in batch:
                        if not other.done():
                            other.set_exception(error)
                except BaseException:  # this message is cancelled, and the others must not wait for ever
                    for _, _, other in (*batch, *appender.waiting):
                        if other is not ready and not other.done():
                            other.set_exception(InterruptedError("the message that wrote for others was stopped"))
                    appender.waiting = []
                    raise
                else:
                    for _, _, other in batch:
                        if not other.done():
                            other.set_result(None)
        finally:
            appender.busy = False
    await ready
