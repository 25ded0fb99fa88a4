"""The Idempotency-Key header for single views of Flask. For a whole application use ``WsgiIdempotency``."""

from collections.abc import Callable, Iterator
from functools import wraps
from io import BytesIO
from typing import Final, ParamSpec, Unpack, cast

try:
    import flask
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.flask needs flask, which is not installed: pip install flask") from error

from onceward.http.answer import PENDING, Answer, AnswerGate
from onceward.http.guarded import Guarded, tell
from onceward.http.held import HeldRequest, claim
from onceward.http.route import WebOptions
from onceward.http.rules import Rules, endpoint_rules
from onceward.once import Once
from onceward.web.sending import Sending
from onceward.web.wsgi import ask

P = ParamSpec("P")
View = Callable[P, flask.typing.ResponseReturnValue]


def idempotent(
    once: Once,
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> Callable[[View[P]], View[P]]:
    """Make a view answer once for each idempotency key.

    Put it next to the function, below ``@app.post(...)`` and below the decorator that finds the caller::

        @app.post("/payments")
        @login_required
        @idempotent(once, Rules(scope=lambda request: current_user.id))
        def pay(): ...

    The view can be a coroutine function. An exception is recorded as the answer of the application's error handlers, and
    ``abort(404)`` as its answer. An unhandled exception gives the key back. Functions of ``after_request`` see replays, too;
    what they add is not recorded. A view must commit its effect before it returns.

    In the view, ``onceward.current()`` returns the claim. The view can complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` covers all POST and
            PATCH. Routes have no path, because the view has one: ``Rules(Route(required=False), scope=...)``.
        **options: see :class:`onceward.web.WebOptions`; ``name`` is required unless ``once`` has one.

    Returns:
        A decorator. The view raises RuntimeError before anything runs, if the request's body was read and not kept.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    guarded = Guarded(once, rules, options, "@idempotent({})", prepare=endpoint_rules)

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> flask.typing.ResponseReturnValue:
            call = cast("Callable[P, flask.typing.ResponseReturnValue]", flask.current_app.ensure_sync(view))
            if flask.request.method not in guarded.methods:
                return call(*args, **kwargs)
            _put_back()
            stage = ask(guarded.rules, flask.request.environ)
            if stage is None:
                return call(*args, **kwargs)
            if isinstance(stage, Answer):
                return _response(stage)
            held = claim(guarded, stage._replace(route=f"{flask.request.method} {flask.request.url_rule}"))
            if isinstance(held, Answer):
                return _response(held)
            held.judge.began = True
            response = held.call(lambda: _call(lambda: call(*args, **kwargs)))
            return _end(held, response)

        return wrapper

    return decorate


def answer(response: flask.Response) -> Answer:
    """Return a response as an answer, to complete a claim with its effect. It must not be a streaming response."""
    return Answer(response.status_code, list(response.headers), response.get_data())


def _call(view: Callable[[], flask.typing.ResponseReturnValue]) -> flask.Response:
    """Return the response of a view, or Flask's response to its exception."""
    app = flask.current_app
    try:
        value = view()
    except Exception as error:  # Flask raises it again if no handler takes it
        value = app.handle_user_exception(error)
    return app.make_response(value)


def _end(held: HeldRequest, response: flask.Response) -> flask.Response:
    if not (response.is_streamed or response.direct_passthrough):
        instead = held.end(held.call(lambda: answer(response)))
        if held.pending:
            response.headers.add(*PENDING)
        return response if instead is None else _response(instead)
    # A direct passthrough is bytes already.
    parts = response.response if response.direct_passthrough else response.iter_encoded()
    close = getattr(response.response, "close", None)
    gate = AnswerGate(response.status_code, response.headers, held.guarded.rules.max_response)
    sending = Sending(held, gate, cast("Iterator[bytes]", iter(parts)), close)
    response.response = flask.request.environ[_SENDING] = sending
    return response


_SENDING: Final = "onceward.sending"  # in the environ: the body that a server is going to close


def _close(_: flask.Flask, **__: object) -> None:
    """Record a streamed answer that Flask drops, without closing it, because ``after_request`` has raised."""
    if flask.has_request_context() and (sending := flask.request.environ.pop(_SENDING, None)) is not None:
        try:
            sending.close()
        except Exception as error:  # the application's own exception goes on
            tell(f"{flask.request.path}: the rest of a streamed answer", error)


flask.got_request_exception.connect(_close)


def _response(reply: Answer) -> flask.Response:
    response = flask.current_app.response_class(reply.body, reply.status, list(reply.headers))
    if not any(name.lower() == "content-type" for name, _ in reply.headers):
        del response.headers["Content-Type"]  # the class's default
    return response


def _put_back() -> None:
    """Make the body readable from the environ, also if something has read it before."""
    request = flask.request
    if "stream" not in vars(request):  # nothing has read it: Werkzeug has not cached it
        return
    body = request.get_data()
    if len(body) < (request.content_length or ("HTTP_TRANSFER_ENCODING" in request.environ)):
        raise RuntimeError(
            "the request's body was read before its idempotency key, and not kept. Read it with request.get_data() before its "
            "form, or guard the application with WsgiIdempotency instead. Nothing has run"
        )
    request.environ["wsgi.input"] = BytesIO(body)
