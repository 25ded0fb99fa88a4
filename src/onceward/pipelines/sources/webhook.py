"""The source ``webhook``."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Annotated, Final, Literal

from msgspec import Meta

from onceward.http.request import read_key
from onceward.keys.json_reading import NotJson, read_json
from onceward.pipelines.flow import Flow, Runs, SourceSettings
from onceward.pipelines.kit import Kit
from onceward.web.webhooks.events import WebhookEvent, WebhookVerifier
from onceward.web.webhooks.signatures import check_bearer


class SendersWithKeys:
    """Verifies the token of a sender, and takes the key from the header Idempotency-Key.

    Args:
        tokens: those that are good.

    Raises:
        ValueError: a token is missing or empty.
    """

    def __init__(self, *tokens: str) -> None:
        if not tokens or not all(tokens):
            raise ValueError("the token is missing or empty: anybody could send")
        self._tokens = tokens

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        check_bearer(headers, self._tokens)
        if "idempotency-key" not in headers:
            raise ValueError("give the header Idempotency-Key")
        key = read_key([headers["idempotency-key"]])
        try:
            data = read_json(body)
        except NotJson as error:
            raise ValueError(f"the payload is {error}") from error
        return WebhookEvent(key, None, data)


# Those whose class has not just the provider's name.
_VERIFIERS: Final = {
    "cloudevents": "CloudEvents",
    "github": "GitHub",
    "gitlab": "GitLab",
    "lemonsqueezy": "LemonSqueezy",
    "standard": "StandardWebhooks",
}


class WebhookSource(SourceSettings):
    """An HTTP endpoint that takes events. The answer is 202 as soon as the ledger has the event. The event is handled after the answer.

    With a provider, the provider's signature is verified first, and the key is the event's id. Without a provider,
    senders give a token and the header Idempotency-Key. If a process is killed, another process handles its events. An
    event has at most 64 KiB.

    Attributes:
        path: The path of the endpoint.
        host: The address to listen on.
        port: The port to listen on.
        provider: Whose signature the events have. standard is Standard Webhooks: Svix, OpenAI, Clerk, Resend and others.
        secret: The secret with which the provider signs, or the provider's token, as in ${SECRET}. While you change it,
            give a list of both.
        topics: With provider: sns, the ARNs of the topics.
        token: Without a provider, the token that senders give as Authorization: Bearer TOKEN. While you change it, give
            a list of both.
    """

    keeps = "webhook"

    path: Annotated[str, Meta(pattern="^/")] = "/"
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    provider: (
        Literal[
            "adyen",
            "cloudevents",
            "github",
            "gitlab",
            "lemonsqueezy",
            "linear",
            "paddle",
            "shopify",
            "slack",
            "sns",
            "standard",
            "stripe",
            "zoom",
        ]
        | None
    ) = None
    secret: str | list[str] | None = None
    topics: list[str] = []
    token: str | list[str] | None = None

    def check(self, kit: "Kit") -> None:
        if not {"{", "}"}.isdisjoint(self.path):
            kit.mistake("path", f"{self.path!r} has braces, and is one path: write it as senders do")
        installed = [kit.needs("", module, "service") for module in ("starlette", "uvicorn")]
        if (self.provider is None) is not (self.token is not None):
            kit.mistake(
                "token" if self.token is not None else "",
                "give provider: and its secret, or token: for senders that give an Idempotency-Key",
            )
        elif self.provider == "sns" and find_spec("cryptography") is None:
            kit.mistake("provider", "this needs cryptography, which is not installed: pip install cryptography")
        elif all(installed):
            with kit.noting("token" if self.provider is None else "provider"):
                self.verifier()

    def verifier(self) -> "WebhookVerifier":
        """Return what verifies an event; raises ValueError if a secret is not valid."""
        from onceward.web import webhooks

        if self.provider is None:
            return SendersWithKeys(*_several(self.token))
        if self.provider == "sns":
            return webhooks.Sns(*self.topics, confirm=True)
        verifier: Callable[..., WebhookVerifier] = getattr(
            webhooks, _VERIFIERS.get(self.provider, self.provider.title())
        )
        return verifier(*_several(self.secret))

    def open(self, flow: "Flow") -> "Runs":
        from onceward.pipelines.sources.inbox import WebhookRuns

        return WebhookRuns(
            flow, self.verifier(), host=self.host, port=self.port, path=self.path, with_keys=self.provider is None
        )


def _several(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
