"""The sink ``http``."""

from typing import Annotated

from msgspec import Meta

from onceward.pipelines.sinks.outgoing import OutboxSink


class HttpSink(OutboxSink, kw_only=True):
    """POST messages to a URL, each after its key is completed. The key is the header `Idempotency-Key`.

    A step `http` sends while the message is handled, and gets the answer.
    """

    url: Annotated[str, Meta(description="The URL, without a user or password.", min_length=1)]

    @property
    def title(self) -> str:
        return f"POST {self.url}"

    @property
    def address(self) -> str:
        return self.url

    @property
    def place(self) -> str:
        return "url"
