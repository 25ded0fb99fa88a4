"""The payment services whose charge, record and answer commit together in PostgreSQL, on real servers that are killed."""

import contextlib
import os
import random
import signal
import time

import pytest

from onceward import Once
from web.servers import check_charged_once, gunicorn, pay_all, uvicorn

pytestmark = pytest.mark.sampled(served=1)

SERVERS = {
    "fastapi": lambda **environment: uvicorn("payments_sqlalchemy:app", "--workers", "3", **environment),
    "django": lambda **environment: gunicorn("payments_django_orm:application", "--workers", "3", **environment),
    "django, ATOMIC_REQUESTS": lambda **environment: gunicorn(
        "payments_django_orm:application", "--workers", "3", ATOMIC_REQUESTS="1", **environment
    ),
}


@pytest.fixture(params=SERVERS)
def served(request):
    return SERVERS[request.param]


@pytest.fixture
def shop(postgres, schema):
    """The environment of a service, and what reads the references of its charges."""
    name = schema.replace("ledger_", "charges_").partition("schema=")[2]
    columns = "id bigserial PRIMARY KEY, reference text NOT NULL, amount bigint NOT NULL"
    postgres.sql(f"CREATE TABLE {name} ({columns})", database="test")
    list(Once(schema).ledger.records())  # makes it
    return {"DATABASE": postgres.url, "LEDGER": schema, "CHARGES": name, "LEASE": "3"}, lambda: [
        reference for (reference,) in postgres.sql(f"SELECT reference FROM {name}", database="test")
    ]


def test_workers_that_are_killed_in_the_middle_leave_one_charge_per_key(served, shop):
    environment, references = shop
    chance, deaths = random.Random(7), 0

    def kill_one():
        nonlocal deaths
        time.sleep(0.3 + chance.random() * 0.5)
        if deaths < 8:
            for worker in server.workers():  # all of them: of several, one can have all the requests
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                deaths += 1

    with served(**environment, BANK_SECONDS="0.2") as server:
        seen = pay_all(server, 40, 5, kill_one)
    check_charged_once(environment["LEDGER"], references, 40)
    assert deaths >= 2
    assert seen["broken"]
