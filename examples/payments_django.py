"""A payment service on Django, in one file: each payment is charged once, however often its request is sent.

    pip install onceward django gunicorn
    gunicorn --workers 4 payments_django:application             or, with ASGI:  uvicorn payments_django:asgi

    curl -i localhost:8000/payments -H 'Idempotency-Key: "8e03978e"' -H 'Content-Type: application/json' \
        -d '{"order": "A-1", "amount": 1250, "currency": "EUR"}'

The second time, curl gets the same receipt, and `Idempotent-Replayed: true`. The charge and the answer to it are recorded in
one transaction, so that it holds also for a worker that is killed in the middle. Both are in `payments.db`; with DynamoDB:

    LEDGER='dynamodb://payments-ledger?region=eu-west-1' CHARGES=charges gunicorn payments_django:application
"""

import os
import sqlite3
import time
from contextlib import closing
from typing import Annotated, Literal
from uuid import uuid4

import django
import msgspec
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from onceward import Claim, Once, current
from onceward.web import Answer, Route, Rules, Scope
from onceward.web.django import answer

LEDGER = os.environ.get("LEDGER", "sqlite:///payments.db")
CHARGES = os.environ.get("CHARGES", "charges")  # the table

settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", str(uuid4())),
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        "onceward.web.django.IdempotencyMiddleware",
    ],
    ONCEWARD={
        "once": Once(LEDGER, lease=float(os.environ.get("LEASE", "30"))),
        # This example has no users. Yours has: see "Whose key it is" in docs/reference/http.md.
        "rules": Rules(Route("/payments"), scope=Scope.EVERYBODY),
        "name": "payments",
        "wait": 5,
    },
)
django.setup()


class Payment(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be paid."""

    order: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    amount: Annotated[int, msgspec.Meta(gt=0, le=1_000_000)]  # in cents
    currency: Literal["EUR", "USD"]


@require_POST
def pay(request: HttpRequest) -> HttpResponse:
    """Charge an order."""
    try:
        payment = msgspec.json.decode(request.body, type=Payment)
    except msgspec.DecodeError as error:
        return JsonResponse({"detail": str(error)}, status=422)
    authorize()
    receipt = {"id": str(uuid4()), **msgspec.to_builtins(payment)}
    response = JsonResponse(receipt, status=201)
    charge(current(), receipt, answer(response))
    return response


urlpatterns = [path("payments", pay)]


def authorize() -> None:
    """Ask the bank, which takes its time."""
    time.sleep(float(os.environ.get("BANK_SECONDS", "0")))


def charge(claim: Claim, receipt: dict[str, object], given: Answer) -> None:
    """Write down the charge together with the answer that retries get: both, or neither."""
    if LEDGER.startswith("dynamodb:"):
        item = {
            "id": {"S": receipt["id"]},
            "reference": {"S": receipt["order"]},
            "amount": {"N": str(receipt["amount"])},
        }
        claim.transact([{"Put": {"TableName": CHARGES, "Item": item}}], given)
        return
    with closing(connect()) as connection, claim.transaction(connection) as transaction:
        connection.execute(
            f"INSERT INTO {CHARGES} VALUES (?, ?, ?)",
            (receipt["id"], receipt["order"], receipt["amount"]),
        )
        transaction.result = given


def connect() -> sqlite3.Connection:
    """Open the file in which the ledger and the charges are."""
    return sqlite3.connect(LEDGER.removeprefix("sqlite:///"), timeout=30)


if LEDGER.startswith("sqlite:"):
    with closing(connect()) as opened:
        opened.execute(f"CREATE TABLE IF NOT EXISTS {CHARGES} (id TEXT, reference TEXT, amount INTEGER)")

application = get_wsgi_application()
asgi = get_asgi_application()
