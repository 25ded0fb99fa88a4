"""A payment service on FastAPI and SQLAlchemy, with the ledger in the PostgreSQL database of its data.

    pip install 'onceward[postgres]' 'psycopg[binary]' fastapi uvicorn 'sqlalchemy[asyncio]'
    psql shop -c 'CREATE TABLE charges (id bigserial PRIMARY KEY, reference text NOT NULL, amount bigint NOT NULL)'
    DATABASE=postgresql://localhost/shop uvicorn payments_sqlalchemy:app --workers 4

    curl -i localhost:8000/payments -H 'Idempotency-Key: "8e03978e"' -H 'Content-Type: application/json' \
        -d '{"order": "A-1", "amount": 1250, "currency": "EUR"}'

The charge, its record and the answer that retries get commit in one transaction. A payment that is declined is rolled back, and
its answer is recorded by itself.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceward import Claim, Once, current
from onceward.web import Rules, Scope
from onceward.web.fastapi import answer, idempotent_route

DATABASE = os.environ.get("DATABASE", "postgresql://localhost/shop")
CREDIT = 1_000_000  # in cents, for each order
once = Once(os.environ.get("LEDGER", DATABASE), lease=float(os.environ.get("LEASE", "30")))
engine = create_async_engine(DATABASE.replace("postgresql://", "postgresql+psycopg://"), pool_pre_ping=True)
sessions = async_sessionmaker(engine)


class Base(DeclarativeBase):
    """The tables."""


class Charge(Base):
    """What was paid."""

    __tablename__ = os.environ.get("CHARGES", "charges")
    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str]
    amount: Mapped[int]


class Payment(BaseModel):
    """What is to be paid."""

    model_config = ConfigDict(strict=True, extra="forbid")

    order: str = Field(min_length=1, max_length=40)
    amount: int = Field(gt=0, description="in cents")
    currency: Literal["EUR", "USD"]


class Declined(Exception):
    """The order has no credit left."""


async def session() -> AsyncIterator[AsyncSession]:
    """Give each request a session of its own."""
    async with sessions() as made:
        yield made


app = FastAPI(title="Payments", version="1.0.0")
# This example has no users. Yours has: see "Whose key it is" in docs/reference/http.md.
payments = APIRouter(route_class=idempotent_route(once, Rules(scope=Scope.EVERYBODY), name="payments", wait=5))


@payments.post("/payments", status_code=201)
async def pay(
    payment: Payment,
    claim: Annotated[Claim, Depends(current)],
    orders: Annotated[AsyncSession, Depends(session)],
) -> JSONResponse:
    """Charge an order."""
    await asyncio.sleep(float(os.environ.get("BANK_SECONDS", "0")))  # the bank takes its time
    try:
        async with claim.transaction(orders) as transaction:
            receipt = await charge(orders, payment)
            response = JSONResponse(receipt, 201)
            transaction.result = answer(response)
    except Declined as declined:
        return JSONResponse({"detail": str(declined)}, 402)
    return response


app.include_router(payments)


async def charge(orders: AsyncSession, payment: Payment) -> dict[str, object]:
    """Write down the charge, and return its receipt."""
    made = Charge(reference=payment.order, amount=payment.amount)
    orders.add(made)
    charged = await orders.scalar(select(func.sum(Charge.amount)).where(Charge.reference == payment.order))
    if charged is not None and charged > CREDIT:
        raise Declined(f"{payment.order} has no credit left")
    return {"id": str(made.id), **payment.model_dump()}
