"""The sinks ``file`` and ``stdout``."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from onceward.pipelines.call import PipelineCall, PipelineMessage, text_of
from onceward.pipelines.contract import SinkAction, SinkSettings
from onceward.pipelines.kit import Kit
from onceward.pipelines.sinks.appending import LOCKS, Appender, KeyedLine


class FileSink(SinkSettings, kw_only=True):
    """Append messages to a file, each as a line, and each once. A text without a line break is written as it is, all else as JSON.

    Beside the file stands ``FILE.onceward``: it tells which lines are in it, so that a line is not written a second time after a
    crash. Delete both together. Several processes of one machine can write to one file.

    Attributes:
        path: The file. A relative path begins at the folder of this file.
    """

    path: Annotated[str, Meta(min_length=1)]

    def build(self, kit: "Kit") -> SinkAction:
        if not LOCKS:
            kit.mistake("", "the sink file needs the file locks of Linux or macOS, which this system does not have")
        path = kit.folder
        try:
            path = (kit.folder / self.path).resolve()  # writers by other names share its journal
            is_folder, is_possible = path.is_dir(), path.parent.is_dir()
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
            kit.mistake("path", f"this is no file: {error}")
        else:
            if is_folder or not is_possible:
                kit.mistake("path", f"{path}: {'a directory' if is_folder else 'its folder does not exist'}")
        appender = Appender(path)

        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            await call.record(_append, appender, call, line_of(message.data))

        return write


def line_of(value: object) -> bytes:
    """Return a value as one line: a text as it is, all else as JSON. A text with a line break is JSON, too."""
    is_line = isinstance(value, str) and "\n" not in value and "\r" not in value
    return (text_of(value).encode() if is_line else msgspec.json.encode(value)) + b"\n"


async def _append(appender: Appender, call: "PipelineCall", line: bytes) -> None:
    """Append a line with all others that wait, so that they share one write to the disk."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    appender.waiting.append((KeyedLine(call.key(), line, call.claim.fence, call.follows), ready))
    if not appender.busy:
        appender.busy = True
        try:
            while appender.waiting:
                batch, appender.waiting = appender.waiting, []
                try:
                    await call.thread(appender.append, [one for one, _ in batch])
                except Exception as error:
                    for _, other in batch:
                        if not other.done():
                            other.set_exception(error)
                except BaseException:  # this message is cancelled, and the others must not wait for ever
                    for _, other in (*batch, *appender.waiting):
                        if other is not ready and not other.done():
                            other.set_exception(InterruptedError("the message that wrote for others was stopped"))
                    appender.waiting = []
                    raise
                else:
                    for _, other in batch:
                        if not other.done():
                            other.set_result(None)
        finally:
            appender.busy = False
    await ready


class StdoutSink(SinkSettings):
    """Print messages as lines of JSON.

    What a message prints is recorded with its key. A duplicate prints it again, so that a second run prints the whole output.
    """

    def build(self, kit: "Kit") -> SinkAction:
        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            call.printed.append(message.data)

        return write
