"""``onceward proxy``: Idempotency-Key for any HTTP application."""

from http import HTTPMethod
from typing import TYPE_CHECKING

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    AttemptsOption,
    LapseOption,
    StoreOption,
    check_answers,
    ledger_at,
    refuse,
    seconds,
)
from onceward.cli.serving import (
    CertificateOption,
    HostOption,
    PortOption,
    PrivateOption,
    listen,
)
from onceward.http.route import Route
from onceward.http.rules import Rules
from onceward.http.scope import Scope

if TYPE_CHECKING:
    from onceward.core.policy import Options


def proxy(
    *,
    upstream: str,
    scope: str,
    name: str,
    store: StoreOption = DEFAULT_STORE,
    route: list[str] | None = None,
    key: str = "Idempotency-Key",
    optional: bool = False,
    wait: str | None = None,
    lease: str = "60s",
    on_lapse: LapseOption = "retry",
    max_attempts: AttemptsOption = None,
    retention: str | None = None,
    silence: str = "60s",
    health: str = "/healthz",
    trusted_proxy: list[str] | None = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    certificate: CertificateOption = None,
    private_key: PrivateOption = None,
) -> None:
    """Stand in front of an HTTP application, so that its requests take effect once for each Idempotency-Key.

    The application can be written in any language, and does not change.

    The first request with a key goes to the application, and its answer is recorded. Each later request gets that
    answer. The application gets a derived key in the header Idempotency-Key, and the headers onceward-attempt and
    onceward-fence.

    If the application answers 502, 504 or nothing, it may have carried the request out. The key then stays claimed to
    the end of the lease. After that, a retry goes to the application, with the same derived key. With --on-lapse park,
    the key is parked for a person instead.

    You must give --scope, which says whose keys they are: credential (Authorization or X-Api-Key), credential:HEADER,
    cookie:NAME, header:NAME (set by a proxy you trust), or everybody. The cookie must be an opaque session id, and no
    signed cookie whose value changes.

    SIGTERM or ctrl-C ends it: requests under way are finished.

    Example: [bold]onceward proxy --upstream http://127.0.0.1:8000 --name shop --scope credential[/bold]

    Options:
        upstream (URL): The application: http://HOST:PORT, https://HOST or unix:/PATH/OF/SOCKET.
        scope (WHOSE): Whose keys they are, as above.
        name (NAME): The namespace of the keys. Give each application its own.
        route (ROUTE): What is guarded, such as 'POST /orders/{id}/refunds', 'POST,PUT /v1/*' or '/orders'. Can be
            repeated. By default: every POST and PATCH.
        key (NAME): The header with the key, or a JMESPath such as body.payment.id.
        optional: Pass requests without a key on, unguarded, instead of 400.
        wait (T): How long a request waits for an earlier one, as 5s. By default: 409 at once.
        lease (T): How long a key stays claimed after the proxy died or the application did not answer, as 60s.
        retention (T): How long answers are repeated, as 7d. By default: 14 days.
        silence (T): How long the application, or a client that sends its body, can be silent; 0s is no limit.
        health (PATH): The path at which the proxy itself answers that it runs. With '', no path is special.
        trusted_proxy (ADDRESS): A proxy in front, whose X-Forwarded headers are kept. Can be repeated. By default: none.
    """
    from onceward.proxy import Proxy  # only this command pays for it

    policy: Options = {"on_lapse": on_lapse, "lease": seconds("--lease", lease) or 0.0, "max_attempts": max_attempts}
    if (age := seconds("--retention", retention)) is not None:
        policy["retention"] = age
    with ledger_at(store) as once:
        app = Proxy(
            upstream,
            once,
            Rules(*(_route(one, key, required=not optional) for one in route or ["*"]), scope=_whose(scope)),
            name=name,
            wait=seconds("--wait", wait),
            health=health or None,
            silence=seconds("--silence", silence) or 0.0,
            trusted_proxies=trusted_proxy or (),
            **policy,
        )
        check_answers(once)
        listen(
            app,
            host=host,
            port=port,
            certificate=certificate,
            private_key=private_key,
            dates=False,  # the upstream's passes
        )


def _route(text: str, key: str, *, required: bool) -> Route:
    """Return what ``--route`` says: methods, if any, and a path."""
    names, _, path = text.strip().rpartition(" ")
    if not names:
        return Route(path, required=required, key=key)
    methods = [name.strip().upper() for name in names.split(",")]
    if unknown := set(methods).difference(HTTPMethod):
        refuse(f"--route {text!r}: {', '.join(sorted(unknown))} is no method of HTTP, so this would guard nothing")
    return Route(path, methods=methods, required=required, key=key)


def _whose(text: str) -> Scope | str:
    """Return what ``--scope`` says."""
    kind, colon, name = text.partition(":")
    if kind == "credential":
        return Scope.credential(name) if colon else Scope.CREDENTIAL
    if text == "everybody":
        return Scope.EVERYBODY
    if kind not in {"cookie", "header"}:
        refuse(f"--scope {text}: give credential, credential:HEADER, cookie:NAME, header:NAME or everybody")
    return text
