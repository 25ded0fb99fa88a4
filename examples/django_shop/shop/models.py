"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order that was paid."""

    reference = models.CharField(max_length=40)
    amount = models.PositiveIntegerField()  # in cents

    def __str__(self) -> str:
        return f"{self.reference}: {self.amount}"
