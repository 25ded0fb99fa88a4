"""Django: the ledger in the project's own database, by migrations, with checks, commands and an admin.

Add ``"onceward.django"`` to ``INSTALLED_APPS`` and run ``manage.py migrate``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.django.guarding import atomic, idempotent
    from onceward.web.django_project import once

__all__ = ["atomic", "idempotent", "once"]

# Django imports this package before its settings and models are complete.
__getattr__, __dir__ = lazily(
    __name__, {".guarding": ("atomic", "idempotent"), "onceward.web.django_project": ("once",)}
)
