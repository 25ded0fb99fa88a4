"""The ledger, made by its own statements, and the state of the model over it."""

from django.db import migrations, models

from onceward.django.models import MomentField
from onceward.django.schema import MakeLedger


class Migration(migrations.Migration):
    """Makes the ledger."""

    initial = True
    operations = [
        MakeLedger(postgresql=3, mysql=1, sqlite=6),
        migrations.CreateModel(
            name="LedgerRecord",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("status", models.CharField(max_length=32)),
                ("attempts", models.BigIntegerField()),
                ("worker", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("created_at", MomentField()),
                ("updated_at", MomentField(null=True)),
                ("lease_until", MomentField()),
                ("expires_at", MomentField(null=True)),
                ("due_at", MomentField(null=True)),
            ],
            options={
                "verbose_name": "key",
                "verbose_name_plural": "ledger",
                "db_table": "onceward",
                "ordering": ("key",),
                "permissions": (
                    ("unpark_ledgerrecord", "Can unpark keys"),
                    ("settle_ledgerrecord", "Can settle keys"),
                    ("clear_ledgerrecord", "Can clear keys"),
                    ("view_payload", "Can view results, inputs and messages"),
                ),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
