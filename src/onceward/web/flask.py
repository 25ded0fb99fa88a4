"""The Idempotency-Key header for single views of Flask; for a whole application take ``WsgiIdempotency``."""

from collections.abc import Callable, Iterator
from functools import wraps
from io import BytesIO
from typing import TYPE_CHECKING, ParamSpec, Unpack, cast

try:
    import flask
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.flask needs flask, which is not installed: pip install flask") from error

from onceward.core.policy import Options
from onceward.http.answer import PENDING, Answer
from onceward.http.endpoint import endpoint_rules
from onceward.http.gate import AnswerGate
from onceward.http.guarded import Guarded
from onceward.http.rules import Rules
from onceward.http.verdict import PassedRequest
from onceward.once import check_once
from onceward.web.environ import ask
from onceward.web.sending import Held, Sending, claim

if TYPE_CHECKING:
    from onceward.once import Once

P = ParamSpec("P")
View = Callable[P, flask.typing.ResponseReturnValue]


def idempotent(
    once: "Once",
    rules: Rules | None = None,
    *,
    name: str | None = None,
    wait: float | None = None,
    **options: Unpack[Options],
) -> Callable[[View[P]], View[P]]:
    """Make a view answer once for each idempotency key.

    Put it next to the function, under ``@app.post(...)`` and under what says who the caller is::

        @app.post("/payments")
        @login_required
        @idempotent(once, Rules(scope=lambda request: current_user.id))
        def pay(): ...

    The view may be a coroutine function. What it raises is recorded as the answer that the application's error handlers make of
    it, and ``abort(404)`` as its answer; what no handler takes gives the key back. The functions of ``after_request`` see
    replays as they see answers, and what they add is not recorded. A view must have committed its effect when it returns.

    ``onceward.current()`` returns the claim in the view, which may complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` are all POST and PATCH.
            Their routes have no path, for that is the view's: ``Rules(Route(required=False), scope=...)``.
        name: the namespace of the keys, another one for each service that shares the ledger. It is required, unless ``once`` has one.
        wait: seconds for which a request waits for the answer to the one before it; without it, it gets a 409 at once.
        **options: see :class:`onceward.Policy`; ``cache`` means nothing here.

    Returns:
        A decorator. The view raises RuntimeError, before anything has run, when the request's body was read and not kept.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    check_once(once, "@idempotent({})")
    guarded = Guarded(once, endpoint_rules(rules), name, wait, options)

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def answered(*args: P.args, **kwargs: P.kwargs) -> flask.typing.ResponseReturnValue:
            called = cast("Callable[P, flask.typing.ResponseReturnValue]", flask.current_app.ensure_sync(view))
            if flask.request.method not in guarded.methods:
                return called(*args, **kwargs)
            _put_back()
            asked = ask(guarded.rules, flask.request.environ)
            if asked is None:
                return called(*args, **kwargs)
            if isinstance(asked, Answer):
                return _response(asked)
            if isinstance(asked, PassedRequest):
                with asked:
                    response = _called(lambda: called(*args, **kwargs))
                asked.answered(response.status_code)
                return response
            held = claim(guarded, asked._replace(route=f"{flask.request.method} {flask.request.url_rule}"))
            if isinstance(held, Answer):
                return _response(held)
            held.began = True
            response = held.call(lambda: _called(lambda: called(*args, **kwargs)))
            return _ended(held, response, guarded.rules.max_response)

        return answered

    return decorate


def answer(response: flask.Response) -> Answer:
    """Return a response, which is not a streaming one, as the answer to complete a claim with, together with its effect."""
    return Answer(response.status_code, list(response.headers), response.get_data())


def _called(view: Callable[[], flask.typing.ResponseReturnValue]) -> flask.Response:
    """Return the response of a view, or what Flask makes of its exception."""
    app = flask.current_app
    try:
        value = view()
    except Exception as error:  # raised again there, when nobody takes it
        value = app.handle_user_exception(error)
    return app.make_response(value)


def _ended(held: Held, response: flask.Response, most: int) -> flask.Response:
    if not (response.is_streamed or response.direct_passthrough):
        instead = held.end(held.call(lambda: answer(response)))
        if held.pending:
            response.headers.add(*PENDING)
        return response if instead is None else _response(instead)
    # What passes through directly is bytes, and all else is encoded.
    parts = response.response if response.direct_passthrough else response.iter_encoded()
    close = getattr(response.response, "close", None)
    gate = AnswerGate(response.status_code, response.headers, most)
    response.response = Sending(held, gate, cast("Iterator[bytes]", iter(parts)), close)
    return response


def _response(given: Answer) -> flask.Response:
    response = flask.current_app.response_class(given.body, given.status, list(given.headers))
    if not any(name.lower() == "content-type" for name, _ in given.headers):
        del response.headers["Content-Type"]  # the class's default
    return response


def _put_back() -> None:
    """See to it that the body can be read from the environ, also when something has read it before."""
    request = flask.request
    if "stream" not in vars(request):  # as Werkzeug notes that nobody has asked for it
        return
    body = request.get_data()
    if len(body) < (request.content_length or ("HTTP_TRANSFER_ENCODING" in request.environ)):
        raise RuntimeError(
            "the request's body was read before its idempotency key could be looked at, and not kept. Have it read with "
            "request.get_data() before its form, or guard the application with WsgiIdempotency instead; nothing has run"
        )
    request.environ["wsgi.input"] = BytesIO(body)
