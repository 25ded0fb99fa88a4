"""A payment service on Django's ORM, in one file, with the ledger in the PostgreSQL database of its data.

    pip install 'onceward[postgres]' 'psycopg[binary]' django gunicorn
    psql shop -c 'CREATE TABLE charges (id bigserial PRIMARY KEY, reference text NOT NULL, amount bigint NOT NULL)'
    DATABASE=postgresql://postgres@localhost/shop gunicorn --workers 4 payments_django_orm:application

    curl -i localhost:8000/payments -H 'Idempotency-Key: "8e03978e"' -H 'Content-Type: application/json' \
        -d '{"order": "A-1", "amount": 1250, "currency": "EUR"}'

The charge, its record and the answer that retries get commit in one transaction. A payment that is declined is rolled back, and
its answer is recorded by itself. With ATOMIC_REQUESTS, too: the view leaves Django's transaction out, for it brings its own.
"""

import os
import time
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import uuid4

import django
import msgspec
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from onceward import Once, current
from onceward.web import Route, Rules, Scope
from onceward.web.django import answer

DATABASE = os.environ.get("DATABASE", "postgresql://postgres@localhost/shop")
CREDIT = 1_000_000  # in cents, for each order
place = urlsplit(DATABASE)

settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", str(uuid4())),
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": place.path[1:],
            "USER": place.username or "",
            "PASSWORD": place.password or "",
            "HOST": place.hostname or "",
            "PORT": place.port or "",
            "CONN_MAX_AGE": 60,
            "CONN_HEALTH_CHECKS": True,
            "ATOMIC_REQUESTS": "ATOMIC_REQUESTS" in os.environ,
        }
    },
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "onceward.web.django.IdempotencyMiddleware"],
    ONCEWARD={
        "once": Once(os.environ.get("LEDGER", DATABASE), lease=float(os.environ.get("LEASE", "30"))),
        # This example has no users. Yours has: see "Whose key it is" in docs/reference/http.md.
        "rules": Rules(Route("/payments"), scope=Scope.EVERYBODY),
        "name": "payments",
        "wait": 5,
    },
)
django.setup()


class Charge(models.Model):
    """What was paid."""

    reference = models.TextField()
    amount = models.BigIntegerField()

    class Meta:
        """Where it is."""

        app_label = "payments"
        db_table = os.environ.get("CHARGES", "charges")

    def __str__(self) -> str:
        return f"{self.reference}: {self.amount}"


class Payment(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be paid."""

    order: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    amount: Annotated[int, msgspec.Meta(gt=0)]  # in cents
    currency: Literal["EUR", "USD"]


class Declined(Exception):
    """The order has no credit left."""


@require_POST
@transaction.non_atomic_requests
def pay(request: HttpRequest) -> HttpResponse:
    """Charge an order."""
    try:
        payment = msgspec.json.decode(request.body, type=Payment)
    except msgspec.DecodeError as error:
        return JsonResponse({"detail": str(error)}, status=422)
    time.sleep(float(os.environ.get("BANK_SECONDS", "0")))  # the bank takes its time
    try:
        with current().transaction(connection) as ours:
            response = JsonResponse(charge(payment), status=201)
            ours.result = answer(response)
    except Declined as declined:
        return JsonResponse({"detail": str(declined)}, status=402)
    return response


def charge(payment: Payment) -> dict[str, object]:
    """Write down the charge, and return its receipt."""
    made = Charge.objects.create(reference=payment.order, amount=payment.amount)
    charged = Charge.objects.filter(reference=payment.order).aggregate(sum=models.Sum("amount"))["sum"]
    if charged > CREDIT:
        raise Declined(f"{payment.order} has no credit left")
    return {"id": str(made.pk), **msgspec.to_builtins(payment)}


urlpatterns = [path("payments", pay)]
application = get_wsgi_application()
