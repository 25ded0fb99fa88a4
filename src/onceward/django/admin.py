"""The ledger in the admin: its keys, to read. Commands and the dashboard change them."""

from typing import Any, Final

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import FloatField, QuerySet, Value
from django.http import HttpRequest
from django.utils.functional import cached_property

from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.views import last_change, relative
from onceward.dashboard.showing import state_of
from onceward.django.models import LedgerRecord
from onceward.terminal import line
from onceward.web.django_project import alias, configuration, project_once

_COUNTED: Final = 10_000  # keys that a list counts: to count a large ledger takes minutes


class FirstPages(Paginator):
    """Pages of which only the first keys are counted."""

    @cached_property
    def count(self) -> int:
        """How many there are, up to a limit."""
        return int(self.object_list[:_COUNTED].count())


class StatusFilter(admin.SimpleListFilter):
    """By status."""

    title = parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the statuses."""
        return [(status, status) for status in (IN_PROGRESS, COMPLETED, RELEASED, PARKED)]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        """Return the keys with the chosen status."""
        return queryset if self.value() is None else queryset.filter(status=self.value())


class LedgerRecordAdmin(admin.ModelAdmin):
    """Keys of the ledger. They are made by handlers, and changed by commands."""

    list_display = ("shown_key", "state", "attempts", "changed", "shown_worker", "shown_error")
    list_display_links = ("shown_key",)
    list_filter = (StatusFilter,)
    search_fields = ("key__startswith",)
    search_help_text = "The beginning of a key, as in shop.charge:order-4"
    show_full_result_count = False
    paginator = FirstPages
    list_per_page = 50
    sortable_by = ("shown_key",)
    actions = None
    fields = readonly_fields = (*list_display[:-1], "error")

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        """Return the keys, each with the store's time."""
        store = project_once().store
        now = drive(store.load("?"), store).now
        return LedgerRecord.objects.using(alias()).annotate(now=Value(now, output_field=FloatField()))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

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


if "once" not in configuration():  # else the ledger can be anywhere
    admin.site.register(LedgerRecord, LedgerRecordAdmin)
