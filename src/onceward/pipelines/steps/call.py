"""The step ``call``."""

import copy
import inspect
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression
from onceward.pipelines.steps.contract import EffectAction, EffectSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class CallStep(EffectSettings, kw_only=True):
    """Call a Python function. It can be a coroutine function; a plain one is called in a thread.

    Within it, ``onceward.current()`` is the claim.
    """

    function: Annotated[
        str, Meta(description="The function, as module:function. The module can be in the folder of this file.")
    ]
    arguments: Annotated[list[Expression] | None, Meta(description="Its arguments. By default the message alone.")] = (
        None
    )
    named: Annotated[dict[str, Expression], Meta(description="Arguments by name.")] = {}

    @property
    def title(self) -> str:
        return self.function

    def build(self, kit: "Kit") -> EffectAction:
        function: Any = kit.imported("function", self.function)
        given = ["message"] if self.arguments is None else self.arguments
        arguments = [kit.expression(("arguments", number), text) for number, text in enumerate(given)]
        named = {name: kit.expression(("named", name), text) for name, text in self.named.items()}
        if function is not None:
            try:
                inspect.signature(function).bind(*arguments, **named)
            except TypeError as error:
                kit.mistake("function", f"{self.function} does not take these arguments: {error}")
            except ValueError:
                pass  # a builtin without a signature
        awaits = inspect.iscoroutinefunction(function)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            # the function can change what it gets, and a later attempt would not see that
            args = [copy.deepcopy(find(message)) for find in arguments]
            kwargs = {name: copy.deepcopy(find(message)) for name, find in named.items()}
            if awaits:
                return await function(*args, **kwargs)
            made = await call.thread(lambda: function(*args, **kwargs))
            return await made if inspect.isawaitable(made) else made

        return make
