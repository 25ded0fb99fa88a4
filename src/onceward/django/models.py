"""The ledger's table as the admin reads it. Nothing writes by this model: changes go through ``once.ledger``."""

from datetime import UTC, datetime
from typing import Any

from django.db import models

from onceward.core.record import Record


class MomentField(models.FloatField):
    """Seconds since the epoch, as each database's ledger keeps them. No setting of a time zone changes them."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Return what selects the seconds."""
        forms = {"postgresql": "extract(epoch FROM {})", "mysql": "({} / 1e6)"}
        return forms.get(compiler.connection.vendor, "{}").format(sql), params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> float | None:
        """Return the seconds."""
        return None if value is None else float(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Return a moment as the database compares it."""
        if value is None or connection.vendor == "sqlite":
            return value
        return datetime.fromtimestamp(value, UTC) if connection.vendor == "postgresql" else int(value * 1e6)


class LedgerRecord(models.Model):
    """A key in the ledger, without what its handler was given, returned and sent."""

    key = models.CharField(primary_key=True, max_length=255)
    status = models.CharField(max_length=32)
    attempts = models.BigIntegerField()
    worker = models.TextField(null=True)
    error = models.TextField(null=True)
    created_at = MomentField()
    updated_at = MomentField(null=True)
    lease_until = MomentField()
    expires_at = MomentField(null=True)
    due_at = MomentField(null=True)

    class Meta:
        """Where it is, and what people may do."""

        managed = False
        db_table = "onceward"
        ordering = ("key",)
        verbose_name = "key"
        verbose_name_plural = "ledger"
        default_permissions = ("view",)
        permissions = (
            ("unpark_ledgerrecord", "Can unpark keys"),
            ("settle_ledgerrecord", "Can settle keys"),
            ("clear_ledgerrecord", "Can clear keys"),
            ("view_payload", "Can view results, inputs and messages"),
        )

    def __str__(self) -> str:
        return str(self.key)

    def as_record(self) -> Record:
        """Return what of a record its state depends on."""
        fields = {field.attname: getattr(self, field.attname) for field in self._meta.fields}
        return Record(owner="", fence=0, beat=0, fingerprint=None, result=None, **fields)
