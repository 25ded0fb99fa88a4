"""What a handler's result is published with, and what happens if that fails."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final

from faststream import BaseMiddleware
from faststream.exceptions import IgnoredException
from faststream.response import PublishCommand, Response

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.origin import PARENT, headers_for
from onceward.faststream.settlement import config_of
from onceward.keys.ledger_keys import derived_key

REPLY: Final = "reply"  # the part of the derived key of what a handler returns
DONE: Final = "onceward_done"  # the attribute of a message that is done, but for what is published


def reply(key: str, value: object) -> Response:
    """Return the result for a key as FastStream publishes it."""
    return Response(value, headers={**headers_for(key, None), KEY_HEADER: derived_key(key, (REPLY,))})


def add_replies(config: Any) -> None:
    """Let a broker's messages pass through :class:`Replies`, once."""
    if Replies not in config.broker_middlewares:
        config.add_middleware(Replies)


class Replies(BaseMiddleware):
    """Gives each place that a result goes to a key of its own, and lets a message come again later if a publisher fails."""

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: PublishCommand) -> Any:
        """Publish a result, under the same key each time."""
        parent = cmd.headers.get(PARENT)
        if parent is not None and cmd.headers.get(KEY_HEADER) == derived_key(parent, (REPLY,)):
            exchange = getattr(getattr(cmd, "exchange", None), "name", None) or ""
            key = derived_key(parent, (REPLY, f"{exchange}/{cmd.destination}"))
            ids = {"Nats-Msg-Id": key} if type(cmd).__name__ == "NatsPublishCommand" else {}
            told = {**cmd.headers, KEY_HEADER: key, **ids}  # the dict itself is that of all publishers
            cmd.headers = self._writable(told) if type(cmd).__name__ == "RedisPublishCommand" else told
        return await call_next(cmd)

    def _writable(self, headers: dict[str, Any]) -> dict[str, Any]:
        from onceward.faststream.on_redis import writable_headers  # only who has Redis' client can import it

        config = config_of(self.context.get_local("handler_"))
        return writable_headers(headers, config.message_format)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Let a message come again after a pause if its result was not published; FastStream would ask for it at once."""
        done = getattr(self.context.get_local("message"), DONE, None)
        if done is not None and isinstance(exc_val, Exception) and not isinstance(exc_val, IgnoredException):
            settlement, message, delivery = done
            await settlement.settle(delivery, BatchOutcome("failed", delivery, None, error=exc_val))
            await settlement.close(message)
        return False
