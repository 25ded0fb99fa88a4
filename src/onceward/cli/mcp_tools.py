"""The tools of ``onceward mcp``: an operator's agent looks at a ledger, and changes it where it is allowed to."""

from collections.abc import Callable, Collection
from functools import wraps
from itertools import islice
from typing import Annotated, Any, Final, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field, JsonValue

from onceward.aws.doctor.look import diagnosis, facts_of
from onceward.core.attempts import attempts_of
from onceward.core.policy import Policy
from onceward.core.views import STATES, last_change, relative
from onceward.dashboard.actions import SeenLedger, run_audited, version_of
from onceward.dashboard.showing import next_words, state_of
from onceward.errors import OncewardError
from onceward.mcp import ToolKey, ToolScope, guard_tools
from onceward.once import Once
from onceward.stores import audit
from onceward.stores.ledger import Ledger

_PAYLOADS: Final = (
    "result",
    "error",
    "steps",
    "unsent",
    "input",
    "history",
)  # what handlers and their input have written
_DEED: Final = ("action", "who", "why", "before")
_MOST: Final = 200  # records of one answer
_INSTRUCTIONS: Final = (
    "The ledger of onceward: one record for each idempotency key, which says whether its effect was made. Look with show_record before you "
    "change anything. A PARKED key whose effect is in doubt must be decided by a person who has asked the downstream."
)

P = ParamSpec("P")
T = TypeVar("T")
KeyInput = Annotated[str, Field(description="The key in the ledger, as list_records shows it.", min_length=1)]
VersionInput = Annotated[str, Field(description="The version of the record, as show_record returned it.")]
WhyInput = Annotated[str, Field(description="Why, for the audit.", min_length=3)]
Shown = dict[str, Any]


def assembled(once: Once, actions: Collection[str], *, payloads: bool, **options: Any) -> MCPServer:
    """Return the server of a ledger. ``payloads`` shows results, errors and messages, too; ``options`` are the server's own."""
    server = MCPServer("onceward", instructions=_INSTRUCTIONS, log_level="ERROR", **options)
    if actions:
        guarded = once.using(name="onceward.mcp")
        guard_tools(server, guarded, key=[ToolKey.argument(), ToolKey.META], scope=ToolScope.EVERYBODY)
    for look in _looks(once, payloads=payloads):
        server.add_tool(_reporting(look), annotations=ToolAnnotations(read_only_hint=True))
    for change in _changes(once.ledger):
        if (name := change.__name__) in actions:
            server.add_tool(_reporting(change), annotations=ToolAnnotations(destructive_hint=name == "clear"))
    return server


def _reporting(tool: Callable[P, T]) -> Callable[P, T]:
    """Return a tool whose errors are for the model to read."""

    @wraps(tool)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return tool(*args, **kwargs)
        except (OncewardError, ValueError, TypeError) as error:
            raise ToolError(str(error)) from error

    return call


def _looks(once: Once, *, payloads: bool) -> list[Callable[..., object]]:
    """Return the tools that only look."""
    ledger = once.ledger

    def list_records(
        prefix: Annotated[str, Field(description="Only keys that start with this.")] = "",
        status: Annotated[list[str] | None, Field(description=f"Only some of {', '.join(STATES)}.")] = None,
        limit: Annotated[int, Field(ge=1, le=_MOST)] = 50,
    ) -> list[Shown]:
        """List records: key, status, attempts, worker and age."""
        return [
            {
                "key": record.key,
                "status": state_of(record, now),
                "attempts": record.attempts,
                "worker": record.worker,
                "changed": relative(last_change(record, now), now),
            }
            for record, now in islice(ledger.records(prefix, status), limit)
        ]

    def show_record(key: KeyInput) -> Shown:
        """Show the record of a key, its attempts, who changed it by hand, and what to do next."""
        record, now = ledger.show(key)
        attempts = [one._asdict() for one in attempts_of(record, now)]
        deeds = [
            {name: getattr(one.deed, name) for name in _DEED} | {"end": one.end, "at": relative(one.at, now)}
            for one in audit.entries_of(ledger, key)
        ]
        hidden = {"history"} if payloads else {*_PAYLOADS}
        if not payloads:
            attempts = [{**one, "error": None} for one in attempts]
        fields = {name: value for name, value in record._asdict().items() if value is not None and name not in hidden}
        more = {"attempts_made": attempts, "changed_by_hand": deeds, "next": next_words(record, now)}
        return {**fields, "version": version_of(record), **more}

    def count_records() -> dict[str, int]:
        """Count the records by status."""
        estimate = ledger.estimate()
        return ledger.stats() if estimate is None else estimate[0]

    def check_settings() -> list[Shown]:
        """Check the ledger's own settings, and say what is unsafe."""
        return [one._asdict() for one in diagnosis(facts_of(Policy(), store=once.store))]

    return [list_records, show_record, count_records, check_settings]


def _changes(ledger: Ledger) -> list[Callable[..., str]]:
    """Return the tools that change a record: one version of it, with an entry in the audit."""

    def unpark(key: KeyInput, version: VersionInput, why: WhyInput) -> str:
        """Let the next delivery of a parked key run. Do it only if its cause is fixed, and its effect was not made."""
        return act("unpark", key, version, why, lambda seen: seen.unpark(key))

    def settle(key: KeyInput, version: VersionInput, why: WhyInput, result: JsonValue = None) -> str:
        """Complete a key by hand: its effect was made, as a person has checked. Duplicates get the result."""
        return act("settle", key, version, why, lambda seen: seen.settle(key, result))

    def clear(key: KeyInput, version: VersionInput, why: WhyInput) -> str:
        """Forget a key. Its next delivery runs again, so a completed effect is made again."""
        return act("clear", key, version, why, lambda seen: seen.clear(key))

    def act(action: str, key: str, version: str, why: str, change: Callable[[Ledger], object]) -> str:
        record, _ = SeenLedger(ledger.store, version).show(key)

        def done(seen: Ledger) -> str:
            change(seen)
            return "done"

        run_audited(ledger, record, action, "an agent, by onceward mcp", why, done)
        return f"{action}: done; it was {record.status}"

    return [unpark, settle, clear]
