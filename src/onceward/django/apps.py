"""The app: ``INSTALLED_APPS = [..., "onceward.django"]``."""

from django.apps import AppConfig


class OncewardConfig(AppConfig):
    """The ledger of the project."""

    name = "onceward.django"
    label = "onceward"
    verbose_name = "onceward"

    def ready(self) -> None:
        """Register the checks."""
        from onceward.django import checks  # noqa: F401 - its decorators register them
