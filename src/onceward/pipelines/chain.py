"""Builds lists of steps, sinks and guards, and runs them: conditions, recorded effects, what an error means, and what a duplicate gets."""

import math
import re
from typing import Any, Final, cast

import msgspec

from onceward.claim.claim import OnLapse
from onceward.claim.held import held
from onceward.claim.replays import CallOutcome
from onceward.claim.stepping.attempt import NOT_MADE, Made
from onceward.core.policy import Options
from onceward.errors import KeyMissing, OncewardError
from onceward.keys.ledger_keys import fingerprint_of, ledger_key
from onceward.observe.logs import logger
from onceward.pipelines.call import PipelineCall, PipelineMessage, StepAction, StepFailed, StepNotMade
from onceward.pipelines.kit import FAILED_HEADERS, EffectSettings, Kit, SinkSettings, StepSettings
from onceward.pipelines.model import FindOut, GuardSettings, InnerGuardSettings, SinkKeys, StepKeys
from onceward.pipelines.settings import SinkChoice, StepChoice, StepList
from onceward.results.outcomes import describe

_NO_SKIP: Final = "a guard of a pipeline has a result for each duplicate"


class GuardRules:
    """The key, the fingerprint and the retention of a guard, compiled."""

    def __init__(
        self, kit: "Kit", settings: GuardSettings, at: tuple[str, ...], name: str = "checked", **more: Any
    ) -> None:
        self._settings = settings
        options = {
            "lease": settings.lease,
            "max_attempts": settings.attempts,
            "on_lapse": settings.on_lapse,
            "retention": None if settings.retention == math.inf else settings.retention,
            **more,
        }
        self.options = cast("Options", options)
        kit.built.lease = max(kit.built.lease, settings.lease)
        with kit.noting(at, ValueError, TypeError):
            self.guard = kit.once.guards.for_keys(
                name, self.options, no_skip=_NO_SKIP
            )  # checks the ledger's clock, too
            return
        self.options = {}

    def key(self, message: "PipelineMessage") -> object:
        """Return the key of a message; raises KeyMissing."""
        key = self._settings.key
        return f"sha256-{fingerprint_of(message.data)}" if key is None else key(message)

    def fingerprint(self, message: "PipelineMessage") -> str | None:
        """Return the fingerprint of a message, if the guard compares one; raises KeyMissing."""
        fingerprint = self._settings.fingerprint
        if fingerprint is None:
            return None
        try:
            return fingerprint_of(fingerprint(message))
        except ValueError as error:
            raise KeyMissing(str(error)) from error


class InnerGuard:
    """A guard around steps or a sink. Its record keeps the message as it left them, and which delivery made it."""

    def __init__(
        self, kit: "Kit", settings: InnerGuardSettings, name: str, at: tuple[str, ...] = (), *, drops: bool = False
    ) -> None:
        space = kit.guard_name((*at, "name"), name)
        self._rules = GuardRules(kit, settings, at, space, on_busy=settings.on_busy or "raise")
        self._drops = drops
        if settings.retention < kit.built.model.backoff.longest + settings.lease:
            kit.warn(
                (*at, "retention"),
                f"a message that fails after this guard can come again {kit.built.model.backoff.longest:g} s later. This "
                "record is then forgotten, and the guarded part runs again: raise retention:, or lower longest: of "
                "backoff:",
            )

    async def run(
        self, message: "PipelineMessage", call: "PipelineCall", action: "StepAction"
    ) -> "PipelineMessage | None":
        """Return the message as ``action`` leaves it, now or before; None if it was dropped."""
        guard = self._rules.guard
        key = ledger_key(guard.name, self._rules.key(message))
        inside = message._replace(at=())  # its steps have the same names wherever in a list the message stands
        by = [call.claim.record.key, *message.at]  # what tells this message, or item of it, from another with its key
        outcome: CallOutcome[Any] = await guard.call_async(  # type: ignore[assignment]  # whole
            key, self._rules.fingerprint(message), self._inside, (inside, call, action, by), {}, whole=True
        )
        record = outcome.value
        ours = (
            isinstance(record, dict)
            and isinstance(record.get("by"), list)
            and record.keys() <= {"by", "data", "printed"}
        )
        if not ours:  # a person has completed the key with the resulting message
            return message if record is None else message.with_data(record)
        if outcome.replayed and record["by"] == by:
            call.printed.extend(record.get("printed", ()))  # an earlier attempt at this message did not come to its end
        elif outcome.replayed and self._drops:
            return None
        return None if "data" not in record else message.with_data(record["data"])

    async def _inside(
        self, message: "PipelineMessage", call: "PipelineCall", action: "StepAction", by: list[object]
    ) -> dict[str, object]:
        claim = held()
        before = len(call.printed)
        inner = call.under(claim)
        result = await action(message, inner)
        record: dict[str, object] = {"by": by}
        if result is not None:
            record["data"] = result.data
        if len(call.printed) > before:
            record["printed"] = call.printed[before:]
        if (lacks := claim.completion(record)).result is None:  # a later attempt at this message could not go on
            raise StepFailed(
                f"the record of this guard cannot hold the message: {lacks.error}. Let the guarded steps end with a "
                "smaller one (map:), and give the guard a field for it (to:)"
            )
        await inner.ended(record)
        return record


_TOLD: Final = ("made", "failed")  # what is recorded of an effect whose errors let the message go on


def built_chain(kit: Kit, steps: StepList) -> StepAction:
    """Return what runs a list of steps."""
    actions = [_step(kit.of(choice.marked), choice) for choice in steps]

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        current: PipelineMessage | None = message
        for action in actions:
            if current is not None:
                current = await action(current, call)
        return current

    return run


def _step(kit: Kit, choice: StepChoice) -> StepAction:
    """Return what runs one step."""
    settings, keys = cast("StepSettings", choice.settings), cast("StepKeys", choice.keys)
    inner = kit.of(choice.marked.parts[choice.kind])
    inner.named = keys.name
    if isinstance(settings, EffectSettings):
        effect = _Effect(kit, inner, choice)
        return _governed(kit, keys, effect.title, effect.run)
    for name, usual in (("into", None), ("on_lapse", "retry")):
        if getattr(keys, name) != usual:
            kit.mistake(name, f"{name}: is for steps with an effect, and {choice.kind} has none")
    return _governed(kit, keys, keys.name or settings.title, settings.build(inner))


def built_sink(kit: Kit, choice: SinkChoice) -> StepAction:
    """Return what brings a message to one sink."""
    settings, keys = cast("SinkSettings", choice.settings), cast("SinkKeys", choice.keys)
    title = kit.title(choice, keys.name or settings.title, "sinks")
    take = settings.build(kit.of(choice.marked.parts[choice.kind]))
    if kit.within:
        kit.mistake(choice.kind, f"a sink cannot be within {kit.within!r}, whose result is recorded: send after it")
    guard = None
    if keys.guard is not None:
        guard = InnerGuard(kit, keys.guard, keys.guard.name or re.sub(r"[\s:]+", "-", title), ("guard",))

    async def send(message: PipelineMessage, call: PipelineCall) -> None:  # not the message: a guard would record it
        inner = call.within(_name(title, message))
        if call.stand_in is not None:
            call.stand_in.sink(title, message, inner)
        else:
            await take(message, inner)

    async def action(message: PipelineMessage, call: PipelineCall) -> PipelineMessage:
        await (send(message, call) if guard is None else guard.run(message, call, send))
        return message

    return _governed(kit, keys, title, action)


def _governed(kit: Kit, keys: StepKeys | SinkKeys, title: str, action: StepAction) -> StepAction:
    """Return the action with its condition, and with what its errors mean. Errors about the claim itself always go on."""
    when, on_error, dead_letters = keys.when, keys.on_error, kit.built.model.dead_letters
    if on_error == "dead_letter" and dead_letters is None:
        kit.mistake("on_error", "on_error: dead_letter needs the address dead_letters: at the top of the file")
    if on_error != "fail" and kit.within:
        kit.mistake("on_error", f"errors within {kit.within!r} belong to it: say what they mean there")

    async def run(message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        if when is not None and not when.holds(message):
            return message
        try:
            return await action(message, call)
        except Exception as error:
            if on_error == "fail" or (isinstance(error, OncewardError) and not isinstance(error, KeyMissing)):
                raise
            reason = f"{title}: {describe(error)}"
            if on_error == "park":
                await call.claim.park_async(reason)
                raise
            if on_error == "dead_letter" and dead_letters is not None:
                inner = call.within(("dead letter", _name(title, message)))
                if call.stand_in is not None:
                    call.stand_in.sink("dead_letters", message, inner)
                else:
                    text = "".join(c if " " <= c <= "~" else "?" for c in reason)[:500]
                    headers = dict(zip(FAILED_HEADERS, ("failed", text), strict=True))
                    call.claim.send(dead_letters, message.data, key=inner.step, headers=headers)
            return message if on_error == "continue" else None

    return action if when is None and on_error == "fail" else run


class _Effect:
    """One effect: how it is recorded, and what its errors say of whether it was made."""

    def __init__(self, kit: Kit, inner: Kit, choice: StepChoice) -> None:
        settings, keys = cast("EffectSettings", choice.settings), cast("StepKeys", choice.keys)
        self.settings, self.keys = settings, keys
        self.title = title = kit.title(choice, keys.name or settings.title, "effects")
        self._alone = bool(kit.within)  # the step around it is the one that is recorded
        if keys.on_lapse != "retry" and kit.within:
            kit.mistake("on_lapse", f"a crash within {kit.within!r} belongs to it: say there what it means")
        if not kit.guarded and not kit.within:
            kit.warn(
                "name" if keys.name else "",
                f"{title!r} has an effect, but no guard: onceward recognises the same message, not the same operation in "
                "another message",
            )
        if keys.on_lapse == "park":
            kit.built.parking.add(title)
        if keys.into is not None and settings.replaces:
            kit.mistake("into", f"into: is not for {choice.kind}, whose result is the whole message")
        self.make = settings.build(inner)
        self._records = inner.records
        self._on_lapse: OnLapse = (
            self._finding_out(kit, keys.on_lapse) if isinstance(keys.on_lapse, FindOut) else keys.on_lapse
        )

    async def run(self, message: PipelineMessage, call: PipelineCall) -> PipelineMessage | None:
        """Make the effect, or take its recorded result, and return the message after it."""
        keys, replaces = self.keys, self.settings.replaces
        inner = call.within(_name(self.title, message), self._on_lapse)
        if self._alone:
            inner.step = (call.step, inner.step)  # and the unit is that of the step around it
            value = await _make(self, message, inner)
        elif self._records or call.stand_in is not None:
            inner.unit = self.title
            value = await inner.record(_make, self, message, inner)
        else:
            value = self.keep(await self.make(message, inner))
        if _is_told(value):  # the file may have had another on_error then
            if "failed" in value:
                return message
            value = value["made"]
        if replaces:
            return None if value is None else message.with_data(value)
        return message if keys.into is None else message.with_field(keys.into, value)

    def keep(self, value: object) -> Any:
        """Return a result as the record has it, so that nothing in it can be taken for a failure.

        The effect is made, so a result that JSON cannot hold is no error.
        """
        try:
            result = msgspec.json.decode(msgspec.json.encode(value))
        except Exception as error:
            text = "%s was made, and its result cannot be recorded, so it is null: %s"
            logger().warning(text, self.title, describe(error))
            result = None
        return {"made": result} if self.keys.on_error == "continue" or _is_told(result) else result

    def _finding_out(self, kit: Kit, settings: FindOut) -> OnLapse:
        """Return what asks the downstream whether an earlier attempt made it."""
        ask = kit.chain(settings.steps, within=self.title)

        async def on_lapse(_key: str, _: object, message: PipelineMessage, call: PipelineCall) -> object:
            answer = await ask(message, call) if call.stand_in is None else None
            if answer is None or not settings.made.holds(answer):
                return NOT_MADE
            return Made(self.keep(None if settings.result is None else settings.result(answer)))

        return cast("OnLapse", on_lapse)


def _is_told(recorded: Any) -> bool:
    """Return whether this says what became of an effect, and is not its result."""
    return isinstance(recorded, dict) and len(recorded) == 1 and not recorded.keys().isdisjoint(_TOLD)


async def _make(effect: _Effect, message: PipelineMessage, call: PipelineCall) -> Any:
    """Make an effect, and return what the record keeps of it."""
    try:
        if call.stand_in is not None and not effect.settings.replaces:  # else the effects are in its own steps
            return effect.keep(await call.stand_in.effect(effect.title, message, call))
        return effect.keep(await effect.make(message, call))
    except Exception as error:
        if isinstance(error, OncewardError | StepNotMade):
            raise
        if effect.keys.on_error == "continue":
            return {"failed": describe(error)}
        raise


def _name(title: str, message: PipelineMessage) -> object:
    return (title, *message.at) if message.at else title
