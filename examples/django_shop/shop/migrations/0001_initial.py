"""The orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes the table of orders."""

    initial = True
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reference", models.CharField(max_length=40)),
                ("amount", models.PositiveIntegerField()),
            ],
        ),
    ]
