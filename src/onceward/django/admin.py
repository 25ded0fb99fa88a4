"""The ledger in the admin: lists, the story of a key, and what people may do to keys."""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_, or_
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import FloatField, Q, QuerySet, Value
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import cached_property

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.drivers import drive
from onceward.core.views import STATES, Criteria, last_change, relative
from onceward.dashboard.showing import state_of
from onceward.django.acting import ACTS, Form
from onceward.django.models import LedgerRecord
from onceward.django.story import story
from onceward.stores.contract import DamagedRecord, NotFound
from onceward.terminal import line
from onceward.web.django_project import alias, configuration, project_once

_COUNTED: Final = 10_000  # keys that a list counts: to count a large ledger takes minutes
_SIGNS: Final = {"=": "exact", "<=": "lte", ">=": "gte"}


def condition_of(clause: Clause, now: float) -> Q:
    """Return a clause as a condition of Django's."""
    if not isinstance(clause, Comparison):
        terms = [condition_of(term, now) for term in clause.terms]
        return reduce(and_ if isinstance(clause, Every) else or_, terms)
    field, sign, value = clause
    if sign == "absent":
        return Q(**{f"{field}__isnull": True})
    compared = value if isinstance(value, str) else now - value
    if sign == "<>":
        return ~Q(**{field: compared})
    return Q(**{f"{field}__{_SIGNS[sign]}": compared})


def _now() -> float:
    """Return the store's time."""
    store = project_once().store
    return drive(store.load("?"), store).now


class FirstPages(Paginator):
    """Pages of which only the first keys are counted."""

    @cached_property
    def count(self) -> int:
        """How many there are, up to a limit."""
        return int(self.object_list[:_COUNTED].count())


class ClauseFilter(admin.SimpleListFilter):
    """By one of several clauses.

    Attributes:
        clauses: by name, with the text of each.
    """

    clauses: ClassVar[Mapping[str, tuple[str, Clause]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names and their texts."""
        return [(name, text) for name, (text, _) in self.clauses.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        """Return the keys that the chosen clause is true of."""
        clause = self.clauses.get(self.value() or "")
        return queryset if clause is None else queryset.filter(condition_of(clause[1], _now()))


class StateFilter(ClauseFilter):
    """By status, and by what follows from its times."""

    title = parameter_name = "state"
    clauses: ClassVar = {state: (state, clause) for state, clause in STATES.items()}


class AgeFilter(ClauseFilter):
    """By the last change."""

    title = parameter_name = "changed"
    clauses: ClassVar = {
        "1h": ("not changed for an hour", Criteria(older_than=3600).clause),
        "1d": ("not changed for a day", Criteria(older_than=86400).clause),
        "7d": ("not changed for a week", Criteria(older_than=7 * 86400).clause),
        "-1h": ("changed in the last hour", Criteria(newer_than=3600).clause),
        "-1d": ("changed in the last day", Criteria(newer_than=86400).clause),
    }


def _permission(name: str) -> Callable[[Any, HttpRequest], bool]:
    """Return a method that says whether a user may do something to keys."""
    return lambda _, request: bool(request.user.has_perm(f"onceward.{name}_ledgerrecord"))


def _action(name: str, description: str) -> Any:
    """Return a method that does something to the chosen keys."""

    @admin.action(permissions=[name], description=description)
    def act(model: "LedgerRecordAdmin", request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        return model.act(request, queryset, name)

    return act


class LedgerRecordAdmin(admin.ModelAdmin):
    """Keys of the ledger. They are made by handlers, and changed by actions only."""

    list_display = ("shown_key", "state", "attempts", "changed", "shown_worker", "shown_error")
    list_display_links = ("shown_key",)
    list_filter = (StateFilter, AgeFilter)
    search_fields = ("key__startswith",)
    search_help_text = "The beginning of a key, as in shop.charge:order-4"
    show_full_result_count = False
    paginator = FirstPages
    list_per_page = 50
    sortable_by = ("shown_key",)
    actions = tuple(ACTS)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        """Return the keys, each with the store's time."""
        return LedgerRecord.objects.using(alias()).annotate(now=Value(_now(), output_field=FloatField()))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: see ``actions``."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

    has_unpark_permission, has_settle_permission, has_clear_permission = map(_permission, ACTS)

    # --- the list -------------------------------------------------------------------------------------------------

    @admin.display(description="key", ordering="key")
    def shown_key(self, obj: LedgerRecord) -> str:
        """Return the key on one line."""
        return line(obj.key)

    def state(self, obj: Any) -> str:
        """Return the status, or LAPSED or EXPIRED."""
        return state_of(obj.as_record(), obj.now)

    def changed(self, obj: Any) -> str:
        """Return when it was last written."""
        return relative(last_change(obj.as_record(), obj.now), obj.now)

    @admin.display(description="worker")
    def shown_worker(self, obj: LedgerRecord) -> str:
        """Return the worker on one line."""
        return line(obj.worker or "")

    @admin.display(description="error")
    def shown_error(self, obj: LedgerRecord) -> str:
        """Return the beginning of the error."""
        return line(obj.error or "")[:160]

    # --- one key --------------------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the story of a key."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        key = unquote(object_id)
        try:
            record, now = project_once().ledger.show(key)
        except (NotFound, DamagedRecord) as error:
            raise Http404(str(error)) from error
        payloads = request.user.has_perm("onceward.view_payload")
        context = story(project_once().ledger, record, now, payloads=payloads)
        context |= {"actions": self.get_action_choices(request, default_choices=[]), "checkbox": ACTION_CHECKBOX_NAME}
        return self._page(request, "onceward/story.html", f"{line(key)[:80]}", context)

    # --- actions --------------------------------------------------------------------------------------------------

    unpark = _action("unpark", "Unpark: the next delivery runs")
    settle = _action("settle", "Settle: the effect is made")
    clear = _action("clear", "Clear: forget it, and run again")

    def act(self, request: HttpRequest, queryset: QuerySet, name: str) -> HttpResponse | None:
        """Show what an action will do; do it once that is confirmed."""
        form = Form(project_once().ledger, ACTS[name], request)
        if form.is_confirmed:
            for key, result, was_done in form.apply():
                text = f"{ACTS[name].verb} {line(key)}: {line(result)}"
                self.message_user(request, text, "success" if was_done else "error")
                if was_done:
                    self.log_change(request, LedgerRecord(key=key), f"{name}: {result}. Why: {form.why}")
            return None
        form.look(queryset)
        context = {"form": form, "act": ACTS[name], "name": name, "checkbox": ACTION_CHECKBOX_NAME}
        return self._page(request, "onceward/act.html", ACTS[name].verb, context)

    def _page(self, request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> HttpResponse:
        variables = {**self.admin_site.each_context(request), "opts": self.opts, "title": title, **context}
        return TemplateResponse(request, template, variables)


if "once" not in configuration():  # else the ledger can be anywhere
    admin.site.register(LedgerRecord, LedgerRecordAdmin)
