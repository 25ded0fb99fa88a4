"""The decorator of a tool: one key, one effect, whatever a model or its client sends again."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from time import monotonic
from typing import Any, Final, TypeVar, Unpack, cast

import anyio
from anyio.to_thread import run_sync
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations

from onceward.claim.called import refuse_not_begun
from onceward.claim.factory import refuse_guarded
from onceward.claim.held import current
from onceward.claim.replays import CallOutcome
from onceward.core.policy import Options
from onceward.errors import Busy, LeaseLost, OncewardError, ResultNotRecorded
from onceward.http.scope import Unscoped
from onceward.keys.ledger_keys import fingerprint_of, scoped_key
from onceward.keys.reading import KeySource
from onceward.keys.signatures import without
from onceward.mcp.call import PARAMETER, ToolCall, call_of, context_annotation, context_parameter, injected_parameters
from onceward.mcp.key import ArgumentPath, KeyOrder, scope_of
from onceward.mcp.results import Recorded, Results, ToolFailed, error_result, recorded, refusal, replay
from onceward.once import Once, check_once

F = TypeVar("F", bound=Callable[..., Any])
GUARDED: Final = "onceward_tool"  # an attribute of a guarded function: its GuardedTool
_ASKS: Final = "the tool asks its client first"
_LOOKS: Final = 0.5  # seconds between two looks at a busy key, each with a progress notification


def exactly(
    once: Once,
    *,
    key: object,
    scope: object = None,
    fingerprint: KeySource | bool = True,
    name: str | None = None,
    server: object = None,
    **options: Unpack[Options],
) -> Callable[[F], F]:
    """Guard a tool of an MCP server. Put it right above the function, under ``@server.tool()``, or give it the ``server``.

    The tool becomes a coroutine function; a plain function runs in a thread. A duplicate gets the recorded result, marked with
    ``onceward/replayed`` in ``_meta``. A call that must not run is an error result, whose text tells the model what to do.

    Args:
        once: the ledger and the defaults of the policy.
        key: where the key comes from: a place of :class:`ToolKey`, a path over the arguments, or a list of them in order.
        scope: whose key it is: see :class:`ToolScope`. There is no default.
        fingerprint: what must not change under one key: True for all arguments but the key's and the context, or a path, or a
            callable. A model may write free text anew when it calls again, so leave such an argument out. What the MCP library fills
            in, such as FastMCP's ``Depends()``, is none of them.
        name: the namespace of the keys; by default the function's module and qualified name.
        server: an ``MCPServer`` or ``FastMCP`` to which to add the tool; its annotations then say ``idempotentHint: true``. Without
            it, give ``@server.tool()`` these annotations.
        **options: see :class:`onceward.Policy`. With seconds of ``on_busy`` a duplicate waits, and the client gets progress
            notifications. An exception in ``final`` is recorded as an error result; so is a returned result with ``isError``,
            if ``final`` contains :class:`ToolFailed`.

    Raises:
        ValueError, TypeError: an option is missing, not valid, or does not fit the tool.
    """
    check_once(once, "@exactly({}, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)")
    policy = once.guards.policy(options)
    if policy.on_busy == "skip":
        raise ValueError('on_busy="skip" would answer with nothing: leave it out, or give a number of seconds')
    tool_scope = scope_of(scope)

    def decorate(function: F) -> F:
        refuse_guarded(function)
        tool = GuardedTool(once, function, key, tool_scope.of, fingerprint, name, options).tool
        if server is not None:
            add_tool(server, tool)
        return cast("F", tool)

    return decorate


def add_tool(server: object, tool: Callable[..., Any]) -> None:
    """Add a guarded tool to a server, with annotations that say that it can be called again."""
    hints = ToolAnnotations(read_only_hint=False, idempotent_hint=True)
    for adding in ("add_tool", "tool"):  # of the official SDK, and of FastMCP
        method = getattr(server, adding, None)
        if callable(method) and "annotations" in inspect.signature(method).parameters:
            method(tool, annotations=hints)
            return
    raise TypeError(f"exactly(server={server!r}): give an MCPServer of the official SDK, or a FastMCP")


class GuardedTool:
    """A tool that runs once for each key. ``tool`` is the function to give to a server."""

    def __init__(
        self,
        once: Once,
        function: Callable[..., Any],
        key: object,
        scope: Callable[[ToolCall], object],
        fingerprint: KeySource | bool,
        name: str | None,
        options: Options,
    ) -> None:
        name = once.guards.apart(name, function)
        policy = once.guards.policy(options)
        self._wait, self._final = policy.wait, policy.final
        options = {**options, "on_busy": "raise", "final": ()}
        self._guard, handler = once.guards.for_function(_stand_in_for(function), name, options)
        self._function, self._is_async, self._claim = function, handler.is_async, handler.claim
        self._scope, self._order = scope, KeyOrder(function, key, handler.claim)
        self._own_context = context_parameter(function)
        self._context = self._own_context or PARAMETER
        self._signature = without(function, handler.claim)
        self._fingerprint = fingerprint
        self._print_path = None if isinstance(fingerprint, bool) else ArgumentPath(function, fingerprint, handler.claim)
        self.tool = self._build()
        self._not_sent = injected_parameters(self.tool) | {self._context}
        self._results = Results(self.tool, self._context)

    def _build(self) -> Callable[..., Awaitable[CallToolResult | InputRequiredResult]]:
        @wraps(self._function)
        async def tool(**arguments: Any) -> CallToolResult | InputRequiredResult:
            return await self._answer(arguments)

        signature = self._with_parameters()
        vars(tool)["__signature__"] = signature
        tool.__annotations__ = {
            **{one.name: one.annotation for one in signature.parameters.values() if one.annotation is not one.empty},
            **{name: hint for name, hint in self._function.__annotations__.items() if name == "return"},
        }
        vars(tool)[GUARDED] = self
        return tool

    def _with_parameters(self) -> inspect.Signature:
        """Return the tool's signature with parameters for the key and the context, and without one for the claim."""
        parameters = list(self._signature.parameters.values())
        more: list[inspect.Parameter] = []
        argument = self._order.argument
        if argument is not None:
            if argument.name in self._signature.parameters:
                raise ValueError(
                    f"key: the tool has a parameter {argument.name} already. Give its name as a path instead"
                )
            required = self._order.only_argument
            default = inspect.Parameter.empty if required else None
            more.append(_by_keyword(argument.name, argument.annotation(required=required), default))
        if self._own_context is None:
            more.append(_by_keyword(PARAMETER, context_annotation()))
        star = next((n for n, one in enumerate(parameters) if one.kind is one.VAR_KEYWORD), len(parameters))
        return self._signature.replace(parameters=[*parameters[:star], *more, *parameters[star:]])

    async def _answer(self, arguments: dict[str, Any]) -> CallToolResult | InputRequiredResult:
        """Answer a call: run the tool, replay its result, or say why not."""
        context = arguments.get(self._context) if self._own_context else arguments.pop(PARAMETER, None)
        if context is None:
            raise TypeError(f"{self._function.__name__}() is a tool of an MCP server: call it by a client")
        argument = self._order.argument
        run = _Run(call_of(context, arguments, argument and arguments.pop(argument.name, None)))
        try:
            return await self._outcome(run)
        except ToolFailed as failed:
            return failed.result
        except OncewardError as error:
            if run.has_begun and not (isinstance(error, LeaseLost | ResultNotRecorded) and error.key == run.key):
                raise  # the tool's own, of another key
            kind, text, after = refusal(error, self._function.__name__, argument)
            if isinstance(error, ResultNotRecorded):
                text = (
                    f"{text} The result: {self._results.read(context, error.result).model_dump_json(exclude_none=True)}"
                )
            return error_result(text, refused=kind, **({} if after is None else {"retryAfter": after}))
        except Unscoped as error:
            return error_result(f"Refused, and nothing was done: {error}.", refused="scope")

    async def _outcome(self, run: "_Run") -> CallToolResult | InputRequiredResult:
        mark = self._read(run)
        inner = partial(self._run_async if self._is_async else self._run, run)
        arguments = (run.key, mark, inner, (), run.call.arguments)
        since = monotonic()
        while True:
            try:
                if self._is_async:
                    outcome = await self._guard.call_async(*arguments, whole=True)
                else:
                    outcome = await run_sync(partial(self._guard.call, *arguments, whole=True))
            except Busy as busy:
                waited = monotonic() - since
                if busy.key != run.key or waited >= self._wait:
                    raise
                await run.call.context.report_progress(
                    waited, self._wait, "an earlier call is running: waiting for its result"
                )
                await anyio.sleep(min(_LOOKS, self._wait - waited))
            else:
                assert isinstance(outcome, CallOutcome)
                if run.asks is not None:
                    return run.asks
                result = self._results.read(run.call.context, outcome.value)
                return replay(result) if outcome.replayed else result

    def _read(self, run: "_Run") -> str | None:
        """Read the key of a call, and return its fingerprint. Raises KeyMissing and Unscoped."""
        call = run.call
        key, tag = self._order.read(call)
        run.key = scoped_key(self._guard.name, (key, tag, self._scope(call)))
        bound = self._signature.bind(**call.arguments)
        bound.apply_defaults()
        if self._fingerprint is True:
            return fingerprint_of(
                {name: value for name, value in bound.arguments.items() if name not in self._not_sent}
            )
        return None if self._print_path is None else fingerprint_of(self._print_path.read(call))

    def _run(self, run: "_Run", *args: Any, **arguments: Any) -> Recorded:
        run.has_begun, claim = True, current()  # the tool may leave another one open
        try:
            value = self._function(*args, **arguments)
        except self._final as error:
            return recorded(error_result(str(error)))
        if isinstance(value, InputRequiredResult):
            claim.release(_ASKS)
        return self._check(run, value)

    async def _run_async(self, run: "_Run", *args: Any, **arguments: Any) -> Recorded:
        run.has_begun, claim = True, current()  # as above
        try:
            value = await self._function(*args, **arguments)
        except self._final as error:
            return recorded(error_result(str(error)))
        if isinstance(value, InputRequiredResult):
            await claim.release_async(_ASKS)
        return self._check(run, value)

    def _check(self, run: "_Run", value: object) -> Recorded:
        refuse_not_begun(self._function, value)
        if isinstance(value, InputRequiredResult):
            run.asks = value
            return {}
        result = self._results.convert(run.call.context, value)
        if result.is_error and getattr(value, "is_error", False) and not issubclass(ToolFailed, self._final):
            raise ToolFailed(result)
        return recorded(result)


class _Run:
    """One call on its way: its key, whether the tool has begun, and what it asks its client."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.key = ""
        self.has_begun = False
        self.asks: InputRequiredResult | None = None


def _stand_in_for(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for a tool, whose results are recorded as they go over the wire."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def stand_in(*args: object, **kwargs: object) -> object:
            return await function(*args, **kwargs)
    else:

        @wraps(function)
        def stand_in(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

    stand_in.__annotations__ = {**function.__annotations__, "return": Recorded}
    return stand_in


def _by_keyword(name: str, annotation: Any, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
