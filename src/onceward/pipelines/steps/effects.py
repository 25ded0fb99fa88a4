"""The steps ``call``, ``retry``, ``lookup`` and ``store``."""

import asyncio
import copy
import inspect
from typing import Annotated, Any, Final

from msgspec import Meta

from onceward.claim.called import refuse_not_begun
from onceward.claim.handler import handler_of
from onceward.errors import LeaseLost, OncewardError
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepFailed, text_of
from onceward.pipelines.keyvalue import opened
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.paths import MESSAGE, PathFinder
from onceward.pipelines.settings import Expression, Regex, Seconds, SomeSeconds, StepList, Text, given
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


class LookupStep(EffectSettings):
    """Look up a value by its key. The result is the value, or null.

    It is recorded, so a later attempt uses the same value.

    Attributes:
        at: Where: redis://host/0, dynamodb://TABLE or json:file.json.
        key: The key.
        space: A namespace that separates these keys from others in the same place.
    """

    at: Text
    key: Expression
    space: Annotated[str, Meta(max_length=100)] = ""

    @property
    def title(self) -> str:
        return f"lookup {self.space or self.at.partition(':')[0]} {self.key}"

    def build(self, kit: "Kit") -> EffectAction:
        values = opened(kit, "at", self.at, self.space, writes=False)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert values is not None
            return await call.thread(values.get, name_of(self.key, message))

        return make


def name_of(find: PathFinder, message: PipelineMessage) -> str:
    """Return the key that an expression finds, as a text.

    Raises:
        ValueError: it finds nothing, or "".
    """
    value = find(message)
    if value is None or value == "":
        raise ValueError(f"{find.expression!r} finds no key in this message")
    return text_of(value)


class StoreStep(EffectSettings):
    """Store a value by its key. A repetition changes nothing.

    The store's own clock decides when a value expires.

    Attributes:
        at: Where: redis://host/0 or dynamodb://TABLE.
        key: The key.
        value: The value.
        ttl: How long the value stays. By default for good.
        space: A namespace that separates these keys from others in the same place.
    """

    at: Text
    key: Expression
    value: Expression = given(MESSAGE)
    ttl: SomeSeconds | None = None
    space: Annotated[str, Meta(max_length=100)] = ""

    @property
    def title(self) -> str:
        return f"store {self.space or self.at.partition(':')[0]} {self.key}"

    def build(self, kit: "Kit") -> EffectAction:
        values = opened(kit, "at", self.at, self.space, writes=True)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert values is not None
            await call.thread(values.set, name_of(self.key, message), self.value(message), self.ttl)

        return make
