"""System checks: ``manage.py check``."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 - Django's name
from django.db import connections

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
    if alias() != "default" and not connections.settings["default"]["ENGINE"].endswith(".dummy"):
        yield Warning(
            f"The ledger is in the database {alias()!r}, so @atomic opens its transaction there. What a function under @atomic "
            "writes to the database 'default' commits by itself, also if the function fails.",
            hint="Put the ledger into the database of your effects. If DATABASE_ROUTERS send all that functions under @atomic write to "
            f"{alias()!r}, or you do not use @atomic, silence this check.",
            id="onceward.W002",
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
