"""System checks: ``manage.py check``, and ``manage.py check --database default`` for the ledger's tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.db import Error as DatabaseError
from django.db import connections, router

from onceward.stores import ddl
from onceward.web.django_project import alias, configuration, problems


@register("onceward")
def check_settings(**_: Any) -> list[CheckMessage]:
    """Check ``settings.ONCEWARD``, and what of ``DATABASES`` it depends on."""
    return list(_messages())


def _messages() -> Iterator[CheckMessage]:
    errors = [Error(text, hint=hint, id=f"onceward.E00{number}") for number, text, hint in problems()]
    yield from errors
    if errors or "once" in configuration():
        return
    if not router.allow_migrate(alias(), "onceward"):
        yield Error(
            f"DATABASE_ROUTERS do not let the app onceward migrate the database {alias()!r}, so its ledger is never made.",
            hint=f"Let allow_migrate({alias()!r}, 'onceward') return True.",
            id="onceward.E005",
        )
    if alias() != "default" and not connections.settings["default"]["ENGINE"].endswith(".dummy"):
        yield Warning(
            f"The ledger is in the database {alias()!r}, so @atomic opens its transaction there. What a function under @atomic "
            "writes to the database 'default' commits by itself, also if the function fails.",
            hint="Put the ledger into the database of your effects. If DATABASE_ROUTERS send all that functions under @atomic write to "
            f"{alias()!r}, or you do not use @atomic, silence this check.",
            id="onceward.W003",
        )
    for name, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"]:
            yield Warning(
                f"DATABASES[{name!r}] has ATOMIC_REQUESTS: a function that is guarded by @once completes its key before the "
                "view's transaction commits. If the COMMIT fails, the effect is lost, and duplicates get the result.",
                hint="@idempotent and webhooks handle it. On views with @atomic, and on others that call guarded functions, put "
                "@transaction.non_atomic_requests below @idempotent. Then silence this check.",
                id="onceward.W001",
            )


@register(Tags.database)
def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the migration is applied."""
    if "once" in configuration() or alias() not in (databases or ()) or any(problems()):
        return []
    try:
        there = connections[alias()].introspection.table_names()
    except DatabaseError:  # Django says so itself
        return []
    missing = [name for name in ddl.tables(connections[alias()].vendor) if name not in there]
    if not missing:
        return []
    text = f"The database {alias()!r} has no table {', '.join(missing)}: the migration of onceward is not applied."
    return [Warning(text, hint=f"manage.py migrate onceward --database {alias()} makes them.", id="onceward.W002")]
