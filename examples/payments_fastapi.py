"""A payment service on FastAPI: each payment is charged once, however often its request is sent.

    pip install onceward fastapi uvicorn
    uvicorn payments_fastapi:app --workers 4

    curl -i localhost:8000/payments -H 'Idempotency-Key: "8e03978e"' -H 'Content-Type: application/json' \
        -d '{"order": "A-1", "amount": 1250, "currency": "EUR"}'

The second time, curl gets the same receipt, and `Idempotent-Replayed: true`. The charge and the answer to it are recorded in
one transaction, so that it holds also for a server that is killed in the middle. Both are in `payments.db`; with DynamoDB:

    LEDGER='dynamodb://payments-ledger?region=eu-west-1' CHARGES=charges uvicorn payments_fastapi:app
"""

import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from onceward import Claim, Once, current
from onceward.web import Answer, Rules, Scope
from onceward.web.fastapi import answer, idempotent_route

LEDGER = os.environ.get("LEDGER", "sqlite:///payments.db")
CHARGES = os.environ.get("CHARGES", "charges")  # the table
once = Once(LEDGER, lease=float(os.environ.get("LEASE", "30")))


def whole(number: object) -> object:
    """Take 12.0 for the whole number that it is in JSON."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


class Payment(BaseModel):
    """What is to be paid."""

    model_config = ConfigDict(strict=True, extra="forbid")

    order: str = Field(min_length=1, max_length=40)
    amount: Annotated[int, BeforeValidator(whole)] = Field(gt=0, le=1_000_000, description="in cents")
    currency: Literal["EUR", "USD"]


class Receipt(Payment):
    """What was paid."""

    id: str


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Make the table of charges, in the file of the ledger."""
    if LEDGER.startswith("sqlite:"):
        with closing(connect()) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {CHARGES} (id TEXT, reference TEXT, amount INTEGER)")
    yield


app = FastAPI(title="Payments", version="1.0.0", lifespan=lifespan)
# This example has no users. Yours has: see "Whose key it is" in docs/reference/http.md.
rules = Rules(scope=Scope.EVERYBODY)
payments = APIRouter(route_class=idempotent_route(once, rules, name="payments", wait=5))


UNREADABLE = {"description": "The body cannot be read.", "content": {"application/json": {}}}


@payments.post("/payments", status_code=201, response_model=Receipt, responses={400: UNREADABLE})
def pay(payment: Payment, claim: Annotated[Claim, Depends(current)]) -> JSONResponse:
    """Charge an order."""
    authorize()
    receipt = Receipt(id=str(uuid4()), **payment.model_dump())
    response = JSONResponse(receipt.model_dump(), 201)
    charge(claim, receipt, answer(response))
    return response


app.include_router(payments)


def authorize() -> None:
    """Ask the bank, which takes its time."""
    time.sleep(float(os.environ.get("BANK_SECONDS", "0")))


def charge(claim: Claim, receipt: Receipt, given: Answer) -> None:
    """Write down the charge together with the answer that retries get: both, or neither."""
    if LEDGER.startswith("dynamodb:"):
        item = {
            "id": {"S": receipt.id},
            "reference": {"S": receipt.order},
            "amount": {"N": str(receipt.amount)},
        }
        claim.transact([{"Put": {"TableName": CHARGES, "Item": item}}], given)
        return
    with closing(connect()) as connection, claim.transaction(connection) as transaction:
        connection.execute(
            f"INSERT INTO {CHARGES} VALUES (?, ?, ?)",
            (receipt.id, receipt.order, receipt.amount),
        )
        transaction.result = given


def connect() -> sqlite3.Connection:
    """Open the file in which the ledger and the charges are."""
    return sqlite3.connect(LEDGER.removeprefix("sqlite:///"), timeout=30)
