"""Receives webhooks for any framework: verify, claim the event's id, handle, answer."""

import asyncio
import inspect
import logging
import math
import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, Unpack, cast

from onceward.batch.handler import awaitable
from onceward.claim.called import refuse_not_begun
from onceward.claim.claim import Claim
from onceward.claim.factory import refuse_guarded
from onceward.claim.handler import handler_of
from onceward.claim.held import current, held
from onceward.core.policy import Options
from onceward.core.protocol import unparked
from onceward.errors import Busy, Parked, ResultUnavailable, StoreError
from onceward.http.answer import Answer, Recorded, recorded
from onceward.keys.ledger_keys import ledger_key
from onceward.once import Once, check_once
from onceward.web.sending import keep
from onceward.web.webhooks.events import TEXT, SignatureRefused, WebhookEvent, WebhookRequest, WebhookVerifier

_log: Final = logging.getLogger("onceward")
_FAILED: Final = "the event %s failed; it is accepted, so `onceward complete --released 1m` tries it again"
_PARKED: Final = (
    "the event %s failed, and its key is parked. Fix the cause, then `onceward unpark %s` lets `onceward complete --released 1m` try it "
    "again"
)
# What calls the handler of the delivery that is received here: it gets the call, and returns its result.
AROUND: ContextVar[Callable[[Callable[[], object]], object] | None] = ContextVar("webhook_around", default=None)
_BEGUN: "ContextVar[Callable[[Claim], None] | None]" = ContextVar("onceward_webhook", default=None)
_MOST: Final = 64  # accepted events of a plain handler that run at a time, each in its thread
_PATIENCE: Final = 3.0  # seconds that a delivery waits for such a thread; providers wait five and more
_DONE, _ACCEPTED = Answer(200, TEXT, b"ok"), Answer(202, TEXT, b"accepted")
_BUSY: Final = Answer(503, (*TEXT, ("Retry-After", "1")), b"try again")


class WebhookReceiver:
    """Handles each event of a provider once, however often it is delivered.

    A delivery with a wrong signature gets 401, and nothing is recorded of it. An event that was handled before gets 200. While it
    is being handled elsewhere it gets 503 and a Retry-After. The handler's exceptions are the framework's, which answers with 500.

    With ``accept`` the answer is 202 as soon as the ledger has the event, and it is handled after. If this process dies meanwhile,
    another one handles the event from the ledger: run ``onceward complete --call MODULE:RECEIVER``.

    Args:
        once: the ledger and the defaults of the policy.
        verifier: the provider's rules, such as ``Stripe(secret)``.
        handler: takes the :class:`WebhookEvent`, and the claim if it asks for it. It may be a coroutine function. If it returns an
            :class:`onceward.web.Answer`, that is the answer, also to duplicates; else it is 200. It must raise its failures.
        name: the namespace of the keys, one for each endpoint of each provider.
        handshake: answers requests without an event, such as a sender's test of the address. It takes the :class:`WebhookRequest`, and
            returns an Answer, or None for other requests. It runs before anything is verified, and nothing is recorded. See
            :func:`meta_handshake` and :func:`graph_handshake`. Slack's test is answered without one.
        accept: whether to answer before the event is handled. An event is then at most 64 KiB. A plain handler takes 64 events at a
            time; further events get 503 and a Retry-After.
        **options: see :class:`onceward.Policy`.

    Attributes:
        accepts: whether it answers before the event is handled.

    Raises:
        ValueError, TypeError: an option is not valid, or does not fit the handler; or the handler is guarded already.
    """

    def __init__(
        self,
        once: Once,
        verifier: WebhookVerifier,
        handler: Callable[..., object],
        *,
        name: str,
        handshake: Callable[[WebhookRequest], Answer | None] | None = None,
        accept: bool = False,
        **options: Unpack[Options],
    ) -> None:
        check_once(once, "WebhookReceiver({}, Stripe(secret), on_stripe, name='webhooks.stripe')")
        if not callable(getattr(verifier, "verify", None)):
            raise TypeError(f"verifier={verifier!r}: give the provider's rules, as in Stripe(secret)")
        refuse_guarded(handler)
        if "key" in options:
            raise TypeError("key= is not an option: the verifier gives the key, which is the event's id. Leave it out")
        if options.get("on_busy", once.guards.defaults.on_busy) == "skip":
            raise ValueError(
                'on_busy="skip" would answer 200 for an event that is not done, such as one whose worker was killed, and the provider '
                "would not deliver it again: leave it out"
            )
        if accept:
            options["keep_input"] = True
        self._verifier, self.accepts, self._handshake = verifier, accept, handshake
        call: Any = once(key=lambda event: event.id, name=name, **options)(_wrap(handler))
        self.is_async: bool = inspect.iscoroutinefunction(call)
        self._call: Callable[[WebhookEvent], Any] = call
        self._threads = threading.BoundedSemaphore(_MOST)
        # What `onceward complete` and complete_lapsed() read.
        self.guarded = call.guarded
        self.__name__, self.__qualname__ = name, name

    def __call__(self, event: WebhookEvent) -> Any:
        """Handle an event that was verified elsewhere."""
        return self._call(event)

    def check_plain(self) -> None:
        """Raise TypeError if the handler is a coroutine function, which :meth:`answer` cannot call."""
        if self.is_async:
            raise TypeError(
                f"the handler of {self.__name__} is a coroutine function: give a plain one, or await answer_async(...)"
            )

    def answer(
        self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", query: Mapping[str, str] | None = None
    ) -> Answer:
        """Receive a delivery, in a thread.

        Args:
            headers: of the request, by their names.
            body: as it came, not decoded.
            method: of the request. Others than POST are for the handshake.
            query: the parameters of its query, for the handshake.

        Returns:
            What to answer.

        Raises:
            TypeError: the handler is a coroutine function.
            Exception: what the handler raised.
        """
        self.check_plain()
        events = self._verify(WebhookRequest(method, query or {}, _lower(headers), body))
        return events if isinstance(events, Answer) else _answer_of_all([self._one(event) for event in events])

    async def answer_async(
        self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", query: Mapping[str, str] | None = None
    ) -> Answer:
        """Like :meth:`answer`, for a coroutine. A plain handler runs in a thread."""
        if not self.is_async:
            answer = awaitable(self.answer, asyncio.to_thread)
            return cast("Answer", await answer(headers, body, method=method, query=query))
        request = WebhookRequest(method, query or {}, _lower(headers), body)
        events = await asyncio.to_thread(self._verify, request)  # a large body, or a certificate that is fetched
        return (
            events if isinstance(events, Answer) else _answer_of_all([await self._one_async(event) for event in events])
        )

    def _one(self, event: WebhookEvent) -> Answer | Exception:
        """Return the answer to one event of a delivery, or what its handler raised."""
        try:
            return self._accept(event) if self.accepts else _answer_of(self._call(event))
        except Exception as error:
            return self._answer_to(event, error)

    async def _one_async(self, event: WebhookEvent) -> Answer | Exception:
        try:
            return await self._accept_async(event) if self.accepts else _answer_of(await self._call(event))
        except Exception as error:
            return self._answer_to(event, error)

    def _verify(self, request: WebhookRequest) -> list[WebhookEvent] | Answer:
        if self._handshake is not None and (answer := self._handshake(request)) is not None:
            return answer
        if request.method != "POST":
            return Answer(405, (*TEXT, ("Allow", "POST")), b"deliveries come by POST")
        try:
            result = self._verifier.verify(request.headers, request.body)
        except SignatureRefused as error:
            _log.info("a webhook is refused: %s", error)
            return Answer(401, TEXT, str(error).encode())
        except OSError as error:  # no 4xx: SNS would not deliver it again
            _log.warning("a webhook cannot be checked now: %s", error)
            return _BUSY
        except ValueError as error:
            _log.error("%s: malformed: %s", self.__name__, error)
            return Answer(400, TEXT, str(error).encode())
        if isinstance(result, Answer):
            return result
        events = result if isinstance(result, list) else [result]
        if all(event.id and str(event.id).strip() for event in events):
            return events
        _log.error("a webhook's event has no id, which is its key: %s", self.__name__)
        return Answer(400, TEXT, b"the event has no id")

    def _answer_to(self, event: WebhookEvent, error: Exception) -> Answer | Exception:
        """Return the answer to a claim that was not won, or what the handler raised."""
        key = ledger_key(self.__name__, event.id)
        if getattr(error, "key", key) != key:
            return error  # the handler itself called another guarded function
        if isinstance(error, ResultUnavailable):
            return _DONE
        if self.accepts and isinstance(error, Busy | Parked):
            if isinstance(error, Parked):
                _log.warning("a webhook came again: %s", error)
            return _ACCEPTED  # the ledger has it
        if isinstance(error, Busy):
            return Answer(503, (*TEXT, ("Retry-After", str(math.ceil(error.retry_after)))), b"it is being handled")
        if isinstance(error, StoreError):
            _log.warning("a webhook waits for the ledger: %s", error)
            return _BUSY
        return error

    def _accept(self, event: WebhookEvent) -> Answer:
        """Answer when the ledger has the event; a thread handles it. Raises what refused the claim."""
        if not self._threads.acquire(timeout=_PATIENCE):
            _log.warning("%s: %d events run, so the event %s must come again", self.__name__, _MOST, event.id)
            return _BUSY
        start: Future[Claim | None] = Future()

        def handle() -> None:
            try:
                _BEGUN.set(start.set_result)
                self._call(event)
                if not start.done():  # it was handled before
                    start.set_result(None)
            except BaseException as error:
                if start.done():
                    _tell(event, cast("Claim", start.result()), error)
                else:
                    start.set_exception(error)
            finally:
                self._threads.release()

        # A daemon: a process that ends does not wait for it, and the key lapses.
        thread = threading.Thread(target=copy_context().run, args=(handle,), name="onceward-webhook", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._threads.release()
            return _BUSY
        start.result()
        return _ACCEPTED

    async def _accept_async(self, event: WebhookEvent) -> Answer:
        start: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        async def handle() -> None:
            _BEGUN.set(start.set_result)
            await self._call(event)

        task = keep(asyncio.get_running_loop().create_task(handle()))
        try:
            await asyncio.wait((task, start), return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.add_done_callback(partial(_over, event, start.result() if start.done() else None))
        if not start.done():
            await task
        return _ACCEPTED


def _over(event: WebhookEvent, claim: Claim | None, task: "asyncio.Task[None]") -> None:
    if claim is not None and not task.cancelled() and (error := task.exception()) is not None:
        _tell(event, claim, error)


def _answer_of_all(answers: list[Answer | Exception]) -> Answer:
    """Return the first answer which says that an event is not done, or else the first; raise what a handler raised first.

    The sender delivers all events again if one is not done; those that are done are replayed then.
    """
    for one in answers:
        if isinstance(one, Exception):
            raise one
    whole = cast("list[Answer]", answers)
    return next((one for one in whole if one.status >= 400), whole[0] if whole else _DONE)


def _tell(event: WebhookEvent, claim: Claim, error: BaseException) -> None:
    """Log that an accepted event has failed, and what tries it again."""
    if unparked(claim.record) is None:
        _log.error(_FAILED, event.id, exc_info=error)
    else:
        _log.error(_PARKED, event.id, shlex.quote(claim.record.key), exc_info=error)


def _record_of(handler: Callable[..., object], value: object) -> Recorded | None:
    """Return what is recorded of what a handler returned: an Answer, and of anything else nothing."""
    refuse_not_begun(handler, value)  # the guard does not see it
    if not isinstance(value, Answer):
        return None
    if value.status >= 500:
        raise ValueError(f"the handler returned an answer of {value.status}: raise an exception for what failed")
    return recorded(value)


def _answer_of(record: Recorded | None) -> Answer:
    return _DONE if record is None else Answer(record.status, record.headers, record.base64 or record.body.encode())


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    for name, value in headers.items():  # of Starlette, with a pair for each line. WSGI joins the lines in the same way
        lines.setdefault(name.lower(), []).append(value)
    return {name: ",".join(values) for name, values in lines.items()}


def _wrap(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under the handler's name. It tells, as it begins, that the ledger has the event."""
    form = handler_of(handler)

    def arguments() -> dict[str, object]:
        held().function = handler
        tell = _BEGUN.get()
        if tell is not None:
            _BEGUN.set(None)  # the handler can call other receivers
            tell(current())
        return {} if form.claim is None else {form.claim: current()}

    async def handle_async(event: WebhookEvent) -> Recorded | None:
        return _record_of(handler, await handler(event, **arguments()))

    def handle(event: WebhookEvent) -> Recorded | None:
        around = AROUND.get()
        AROUND.set(None)  # as above
        call: Callable[[], Recorded | None] = lambda: _record_of(handler, handler(event, **arguments()))
        # A joined record keeps what it returns.
        return call() if around is None else cast("Recorded | None", around(call))

    wrapper = handle_async if form.is_async else handle
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, name, getattr(handler, name, getattr(wrapper, name)))
    return wrapper
