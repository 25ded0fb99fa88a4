"""The example payment service does what its OpenAPI says."""

import asyncio
import importlib
import json
import sys

import httpx
import pytest

from places import EXAMPLES


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example payment service, with a ledger of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEDGER", f"sqlite:///{tmp_path_factory.mktemp('example')}/payments.db")
        patch.setenv("CHARGES", "charges")
        patch.syspath_prepend(str(EXAMPLES))
        sys.modules.pop("payments_fastapi", None)
        module = importlib.import_module("payments_fastapi")
        yield module
        module.once.close()
        del sys.modules["payments_fastapi"]


def test_the_example_charges_an_order_once(example):
    content = {"order": "A-1", "amount": 1250, "currency": "EUR"}

    async def main():
        async with example.lifespan(example.app):
            transport = httpx.ASGITransport(example.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                headers = {"Idempotency-Key": '"once"'}
                return [await client.post("/payments", json=content, headers=headers) for _ in range(2)]

    first, second = asyncio.run(main())
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json() == content | {"id": json.loads(first.text)["id"]}
    with example.connect() as connection:
        charged = connection.execute("SELECT amount FROM charges WHERE reference = 'A-1'").fetchall()
    connection.close()
    assert charged == [(1250,)]
