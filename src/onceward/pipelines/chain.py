"""Builds lists of steps and sinks, and runs them: conditions, recorded effects, and what an error means."""

import re
from typing import Any, Final, cast

import msgspec

from onceward.claim.claim import OnLapse
from onceward.claim.stepping.answers import NOT_MADE, Made
from onceward.errors import KeyMissing, OncewardError
from onceward.observe.logs import logger
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepAction, StepNotMade
from onceward.pipelines.contract import EffectSettings, SinkSettings, StepSettings
from onceward.pipelines.guards import InnerGuard
from onceward.pipelines.kit import FAILED_HEADERS, Kit
from onceward.pipelines.model import FindOut, SinkKeys, StepKeys
from onceward.pipelines.paths import PathFinder
from onceward.pipelines.settings import SinkChoice, StepChoice, StepList
from onceward.results.outcomes import describe

_TOLD: Final = ("made", "failed")  # what is recorded of an effect whose errors let the message go on
_FAILED: Final = object()  # an effect failed, and the message goes on without it


def built_chain(kit: "Kit", steps: "StepList") -> StepAction:
    """Return what runs a list of steps."""
    actions = [_step(kit.of(choice.marked), choice) for choice in steps]

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        for action in actions:
            left = await action(message, call)
            if left is None:
                return None
            message = left
        return message

    return run


def _step(kit: "Kit", choice: "StepChoice") -> StepAction:
    """Return what runs one step, with its condition, and with what its errors mean."""
    settings, keys = cast("StepSettings", choice.settings), cast("StepKeys", choice.keys)
    kit_of = kit.of(choice.marked.value[choice.kind])
    kit_of.named = keys.name
    if isinstance(settings, EffectSettings):
        title = kit.title("name" if keys.name else choice.kind, keys.name or settings.title, "effects")
        _check_effect(kit, keys, title)
        if keys.on_lapse == "park":
            kit.built.parking.add(title)
        if settings.replaces and keys.into is not None:
            kit.mistake("into", f"into: is not for {choice.kind}, whose result is the whole message")
        if keys.into is not None:
            kit.place("into", keys.into)
        effect = _Effect(title, settings.build(kit_of), keys, keys.not_made, settings.replaces)
        action = _recorded(kit, settings, keys, effect)
    else:
        title = keys.name or settings.title
        for name in ("into", "not_made"):
            if getattr(keys, name):
                kit.mistake(name, f"{name}: is for steps with an effect, and {choice.kind} has none")
        if keys.on_lapse != "retry":
            kit.mistake("on_lapse", f"on_lapse: is for steps with an effect, and {choice.kind} has none")
        action = settings.build(kit_of)
    return _conditional(keys.when, _forgiving(kit, keys.on_error, title, action))


def built_sink(kit: "Kit", choice: "SinkChoice") -> StepAction:
    """Return what brings a message to one sink."""
    settings, keys = cast("SinkSettings", choice.settings), cast("SinkKeys", choice.keys)
    title = kit.title("name" if keys.name else choice.kind, keys.name or settings.title, "sinks")
    take = settings.build(kit.of(choice.marked.value[choice.kind]))
    if kit.within:
        kit.mistake(choice.kind, f"a sink cannot be within {kit.within!r}, whose result is recorded: send after it")

    async def send(message: PipelineMessage, call: PipelineCall) -> PipelineMessage:
        inner = call.within(_name(title, message))
        if call.stand_in is not None:
            call.stand_in.sink(title, message, inner)
        else:
            await take(message, inner)
        return message

    action: StepAction = send
    if keys.guard is not None:
        guard = InnerGuard(kit, keys.guard, keys.guard.name or re.sub(r"[\s:]+", "-", title), "replay", ("guard",))

        async def inside(message: PipelineMessage, call: PipelineCall) -> None:
            await send(message, call)  # the message is not recorded: it may be too large, and nobody needs it

        async def guarded(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
            await guard.run(message, call, inside)
            return message

        action = guarded
    return _conditional(keys.when, _forgiving(kit, keys.on_error, title, action))


# --- conditions and errors --------------------------------------------------------------------------------------------


def _conditional(when: PathFinder | None, action: StepAction) -> StepAction:
    if when is None:
        return action

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        return await action(message, call) if when.holds(message) else message

    return run


def _forgiving(kit: "Kit", on_error: str, title: str, action: StepAction) -> StepAction:
    """Return the action with what its errors mean. Errors about the claim itself always go on."""
    if on_error == "fail":
        return action
    if on_error == "dead_letter" and kit.built.model.dead_letters is None:
        kit.mistake("on_error", "on_error: dead_letter needs the address dead_letters: at the top of the file")
    if kit.within:
        kit.mistake("on_error", f"errors within {kit.within!r} belong to it: say what they mean there")

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        try:
            return await action(message, call)
        except Exception as error:
            if isinstance(error, OncewardError) and not isinstance(error, KeyMissing):
                raise
            if on_error == "park":
                await call.claim.park_async(f"{title}: {describe(error)}")
                raise
            if on_error == "dead_letter" and kit.built.model.dead_letters is not None:
                inner = call.within(("dead letter", _name(title, message)))
                reason = _header(f"{title}: {describe(error)}")
                headers = dict(zip(FAILED_HEADERS, ("failed", reason), strict=True))
                if call.stand_in is not None:
                    call.stand_in.sink("dead_letters", message, inner)
                else:
                    inner.send(kit.built.model.dead_letters, message.data, headers=headers)
            return message if on_error == "continue" else None

    return run


def _header(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:500]


# --- effects ----------------------------------------------------------------------------------------------------------


def _check_effect(kit: "Kit", keys: StepKeys, title: str) -> None:
    if keys.not_made and keys.on_lapse != "park":
        kit.mistake("not_made", "not_made: is for on_lapse: park")
    if not kit.guarded and not kit.within:
        kit.warn(
            "name" if keys.name else "",
            f"{title!r} has an effect, but no guard: onceward recognises the same message, not the same operation in "
            "another message",
        )


def _recorded(kit: "Kit", settings: EffectSettings, keys: StepKeys, effect: "_Effect") -> StepAction:
    title = effect.title
    on_lapse: OnLapse = effect.finding_out(kit, keys.on_lapse) if isinstance(keys.on_lapse, FindOut) else keys.on_lapse
    not_made = (StepNotMade,) if on_lapse == "park" else ()
    alone = bool(kit.within)  # the step around it is the one that is recorded

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        inner = call.within(_name(title, message), on_lapse, not_made)
        if alone:
            inner.step = (call.step, inner.step)  # and the unit is that of the step around it
            value = effect.opened(await effect.made(message, inner))
        elif settings.records or call.stand_in is not None:
            inner.unit = title
            value = effect.opened(await inner.record(_made, effect, message, inner))
        else:
            value = _recordable(title, await effect.make(message, inner))
        if value is _FAILED:
            return message
        if settings.replaces:
            return None if value is None else message.with_data(value)
        return message if keys.into is None else message.with_field(keys.into, value)

    return run


class _Effect:
    """One effect: its action, and what its errors say of whether it was made."""

    def __init__(
        self, title: str, make: EffectAction, keys: StepKeys, not_made: "list[re.Pattern[str]]", replaces: bool
    ) -> None:
        self._replaces = replaces  # then the effects are in its own steps
        self.title, self.make, self._not_made = title, make, not_made
        self._continues = keys.on_error == "continue"

    async def made(self, message: PipelineMessage, call: PipelineCall) -> Any:
        """Make it, and return its result as JSON has it, so that a later attempt gets the same."""
        try:
            if call.stand_in is not None and not self._replaces:
                result = await call.stand_in.effect(self.title, message, call)
            else:
                result = await self.make(message, call)
            return self._kept(_recordable(self.title, result))
        except Exception as error:
            if isinstance(error, OncewardError | StepNotMade):
                raise
            if self._continues:
                return {"failed": describe(error)}
            if any(one.search(describe(error)) for one in self._not_made):
                raise StepNotMade(describe(error)) from error
            raise

    def opened(self, recorded: Any) -> Any:
        """Return the result in what is recorded, or _FAILED. The file may have had another ``on_error`` then."""
        if not _is_told(recorded):
            return recorded
        return _FAILED if "failed" in recorded else recorded["made"]

    def _kept(self, result: Any) -> Any:
        """Return a result so that nothing in it can be taken for a failure."""
        return {"made": result} if self._continues or _is_told(result) else result

    def finding_out(self, kit: "Kit", settings: FindOut) -> "OnLapse":
        """Return what asks the downstream whether an earlier attempt made it."""
        ask = kit.chain(settings.steps, within=self.title)

        async def on_lapse(_key: str, _: object, message: PipelineMessage, call: PipelineCall) -> object:
            answer = await ask(message, call) if call.stand_in is None else None
            if answer is None or not settings.made.holds(answer):
                return NOT_MADE
            return Made(self._kept(None if settings.result is None else settings.result(answer)))

        return cast("OnLapse", on_lapse)


def _is_told(recorded: Any) -> bool:
    """Return whether this says what became of an effect, and is not its result."""
    return isinstance(recorded, dict) and len(recorded) == 1 and not recorded.keys().isdisjoint(_TOLD)


async def _made(effect: _Effect, message: PipelineMessage, call: PipelineCall) -> Any:
    return await effect.made(message, call)


def _recordable(title: str, value: object) -> Any:
    """Return a result as the record has it. The effect is made, so a result that JSON cannot hold is no error."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception as error:
        logger().warning("%s was made, and its result cannot be recorded, so it is null: %s", title, describe(error))
        return None


def _name(title: str, message: PipelineMessage) -> object:
    return (title, *message.at) if message.at else title
