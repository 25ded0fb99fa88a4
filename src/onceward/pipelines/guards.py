"""Guards of a pipeline: how their keys are made, how long their records stay, and what a duplicate gets."""

import math
from typing import Any, Final

from onceward.claim.held import held
from onceward.claim.replays import CallOutcome
from onceward.core.policy import Options
from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import fingerprint_of, ledger_key
from onceward.pipelines.call import PipelineCall, PipelineMessage, StepAction, StepFailed
from onceward.pipelines.kit import Kit
from onceward.pipelines.model import GuardSettings, InnerGuardSettings

_NO_SKIP: Final = "a guard of a pipeline has a result for each duplicate"


class GuardRules:
    """The key, the fingerprint and the retention of a guard, compiled."""

    def __init__(self, kit: "Kit", settings: GuardSettings, at: tuple[str, ...]) -> None:
        self._settings = settings
        self.options: Options = {
            "lease": settings.lease,
            "max_attempts": settings.attempts,
            "on_lapse": settings.on_lapse,
            "retention": None if settings.retention == math.inf else settings.retention,
        }
        kit.built.lease = max(kit.built.lease, settings.lease)
        with kit.noting(at, ValueError, TypeError):
            kit.once.guards.for_keys("checked", self.options, no_skip=_NO_SKIP)  # also against the ledger's clock
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
        self._rules = GuardRules(kit, settings, at)
        options: Options = {**self._rules.options, "on_busy": settings.on_busy or "raise"}
        space = kit.guard_name((*at, "name"), name)
        with kit.noting((*at, "name"), ValueError, TypeError):  # one that was made of the sink's
            self._guard = kit.once.guards.for_keys(space, options, no_skip=_NO_SKIP)
        self._drops = drops
        keep = options.get("retention")
        if keep is not None and keep < kit.built.model.backoff.longest + options.get("lease", 0.0):
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
        key = ledger_key(self._guard.name, self._rules.key(message))
        inside = message._replace(at=())  # its steps have the same names wherever in a list the message stands
        by = [call.claim.record.key, *message.at]  # what tells this message, or item of it, from another with its key
        outcome: CallOutcome[Any] = await self._guard.call_async(  # type: ignore[assignment]  # whole
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
