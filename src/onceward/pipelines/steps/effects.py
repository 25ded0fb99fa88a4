"""The steps ``call`` and ``retry``."""

import asyncio
import copy
import inspect
from typing import Annotated, Any, Final

from msgspec import Meta

from onceward.claim.called import refuse_not_begun
from onceward.claim.handler import handler_of
from onceward.errors import LeaseLost, OncewardError
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepFailed
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import MESSAGE, Expression, Regex, Seconds, StepList, given
from onceward.results.outcomes import describe

_LONGEST: Final = 60.0  # seconds between two tries


class CallStep(EffectSettings):
    """Call a Python function. It can be a coroutine function; a plain one is called in a thread.

    Within it, ``onceward.current()`` is the claim.

    Attributes:
        function: The function, as module:function. The module can be in the folder of this file.
        arguments: Its arguments. By default the message alone.
        named: Arguments by name.
    """

    function: str
    arguments: list[Expression] | None = None
    named: dict[str, Expression] = {}

    @property
    def title(self) -> str:
        return self.function

    def build(self, kit: "Kit") -> EffectAction:
        function: Any = kit.imported("function", self.function)
        arguments = [MESSAGE] if self.arguments is None else self.arguments
        awaits = False
        if function is not None:
            with kit.noting("function", TypeError):
                awaits = handler_of(function).is_async
            try:
                inspect.signature(function).bind(*arguments, **self.named)
            except TypeError as error:
                kit.mistake("function", f"{self.function} does not take these arguments: {error}")
            except ValueError:
                pass  # a builtin without a signature

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            # the function can change what it gets, and a later attempt would not see that
            args = [copy.deepcopy(find(message)) for find in arguments]
            kwargs = {name: copy.deepcopy(find(message)) for name, find in self.named.items()}
            value = function(*args, **kwargs) if awaits else await call.thread(lambda: function(*args, **kwargs))
            value = await value if inspect.isawaitable(value) else value
            refuse_not_begun(function, value)
            return value

        return make


class RetryStep(EffectSettings):
    """Do some steps again until they succeed.

    All tries are one step of the record, so `on_lapse` stands beside `retry`. Each try runs all steps again, with the same derived
    keys. The record keeps the message after the last try.

    Attributes:
        steps: What is tried.
        tries: How often at most.
        pause: The pause before the second try. No pause is longer than 1m.
        factor: How much longer each next pause is.
        until: What must be true for the resulting message. By default nothing.
        errors: Regular expressions of the errors that are tried again. By default all are.
    """

    steps: StepList
    tries: Annotated[int, Meta(ge=1, le=1000)] = 3
    pause: Seconds = given(Seconds("1s"))
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    until: Expression | None = None
    errors: list[Regex] = []

    replaces = True

    def build(self, kit: "Kit") -> EffectAction:
        steps = kit.chain(self.steps, within=self.title)

        def again(error: Exception) -> bool:
            if isinstance(error, OncewardError):
                return False
            return not self.errors or any(one.search(describe(error)) for one in self.errors)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            wait: float = self.pause
            for number in range(self.tries):
                if number and call.stand_in is None:
                    await asyncio.sleep(min(wait, _LONGEST))
                    wait *= self.factor
                if call.claim.lost:
                    raise LeaseLost(call.claim.record.key, "try again")
                try:
                    result = await steps(message, call)
                except Exception as error:
                    if number + 1 == self.tries or not again(error):
                        raise
                    continue
                if result is None or self.until is None or self.until.holds(result):
                    return None if result is None else result.data
            raise StepFailed(f"{str(self.until)!r} does not hold after {self.tries} tries")

        return make
