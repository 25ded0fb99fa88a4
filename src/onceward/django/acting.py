"""What people may do to keys in the admin: the form that says what will happen, and the deed with its audit."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest

from onceward.core.record import Record
from onceward.core.views import UNSETTLED, next_step
from onceward.dashboard.actions import ACTIONS, Action, Preview, SeenLedger, possible, run_audited, version_of
from onceward.dashboard.showing import kept_in, state_of
from onceward.errors import OncewardError
from onceward.keys.json_reading import NotJson, read_json
from onceward.stores.contract import DamagedRecord, NotFound
from onceward.stores.ledger import Ledger
from onceward.terminal import line

MOST: Final = 200  # keys of one action


def _settles(record: Record, now: float) -> Preview | None:
    if next_step(record, now) not in UNSETTLED:
        return None
    loses = "It keeps a message that is in no queue any more. That message will be lost." if kept_in(record) else None
    does = "It completes this key: duplicates get the result that you give, and the handler never runs for it."
    return Preview(does, loses, asks="The result, as JSON", suggested="null")


ACTS: Final = {
    "unpark": ACTIONS["unpark"],
    "settle": Action(
        "settle",
        "Settle",
        _settles,
        lambda ledger, key, detail: ledger.settle(key, read_json(detail), message=True),
        "completed by hand",
    ),
    "clear": ACTIONS["clear"],
}


class ChosenKey(NamedTuple):
    """A key of the form: what will be done, and to which version of it."""

    key: str
    label: str
    state: str
    version: str
    preview: Preview


class Form:
    """What an action will do to the chosen keys, and the visitor's answer.

    Attributes:
        rows: the keys to which it means something.
        others: how many of the chosen keys it means nothing to.
        why: the visitor's reason.
        wrong: what the answer lacks.
    """

    def __init__(self, ledger: Ledger, action: Action, request: HttpRequest) -> None:
        self._ledger, self._action, self._request = ledger, action, request
        self._post = request.POST
        self.rows: list[ChosenKey] = []
        self.others = 0
        self.why = self._post.get("why", "").strip()[:1000]
        self.wrong = self._lacks() if "confirmed" in self._post else None

    @property
    def is_confirmed(self) -> bool:
        """Whether it can be applied."""
        return "confirmed" in self._post and self.wrong is None

    def look(self, queryset: QuerySet) -> None:
        """Read the chosen keys."""
        keys = list(queryset.values_list("pk", flat=True)[: MOST + 1])
        if len(keys) > MOST:
            self.wrong = f"Only the first {MOST} of the chosen keys are listed. Do this again for the others."
        for key in keys[:MOST]:
            try:
                record, now = self._ledger.show(key)
            except (NotFound, DamagedRecord):
                self.others += 1
                continue
            preview = self._preview(record, now)
            if preview is None:
                self.others += 1
            else:
                self.rows.append(ChosenKey(key, line(key), state_of(record, now), version_of(record), preview))

    def _preview(self, record: Record, now: float) -> Preview | None:
        """Return what will be done to a record: nothing to an entry of the audit."""
        return self._action.preview(record, now) if possible(record, now) else None

    @property
    def loses(self) -> bool:
        """Whether it takes something away."""
        return any(row.preview.loses for row in self.rows)

    def _lacks(self) -> str | None:
        if not self.why:
            return "Say why. The audit keeps it."
        if self._action.name == "settle":
            try:
                read_json(self._post.get("detail", ""))
            except NotJson as error:
                return f"The result is {error}"
        return None

    def apply(self) -> Iterator[tuple[str, str, bool]]:
        """Do it to each key whose record is still the one that was shown. Yield the key, what to tell, and whether it is done."""
        keys, versions = self._post.getlist(ACTION_CHECKBOX_NAME), self._post.getlist("version")
        for key, version in list(zip(keys, versions, strict=False))[:MOST]:
            try:
                yield key, self._apply(key, version), True
            except OncewardError as error:
                yield key, str(error), False

    def _apply(self, key: str, version: str) -> str:
        record, now = SeenLedger(self._ledger.store, version).show(key)  # Changed: it is not the one that was shown
        preview = self._preview(record, now)
        if preview is None:
            raise OncewardError(f"it is {record.status}, so this action does not apply")
        if preview.loses is not None and "accept" not in self._post:
            raise OncewardError(f"nothing was done, because you have not accepted this: {preview.loses}")
        detail = self._post.get("detail", "")
        user: Any = self._request.user
        who = f"{user.get_username()} (by Django's admin)"
        return run_audited(
            self._ledger, record, self._action.name, who, self.why, lambda seen: self._action.run(seen, key, detail)
        )
