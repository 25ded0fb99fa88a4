"""The Python of the pages runs as it is printed. Pages that need more than a few names have tests of their own."""

import contextlib
import json
import os
import sqlite3
import sys
from types import SimpleNamespace

import httpx
import psycopg
import pytest
import redis as clients
from celery import current_app
from mcp import Client
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from commands.mcp_tools import mark
from commands.mcp_tools import text as text_of
from onceward import Claim, Completed, Once, ResultUnavailable, StoreError
from onceward.nats import send as send_to_nats
from onceward.redis_streams import send as send_to_redis
from onceward.web.webhooks import GitHub, WebhookEvent, WebhookReceiver
from places import EXAMPLES, SUPPORT
from printed.pages import run
from servers.needs import numbers
from servers.redis import Redis
from tables import each
from web.calls import DashboardVisitor

MEMORY = {"dynamodb://orders-ledger?region=eu-west-1": "memory:"}
LEDGER = {"postgresql://db/shop": "memory:"}
_NUMBERS = numbers()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@each(
    ("page", "title", "replaced"),
    [
        ("docs/reference/guards.md", "How long a lease", {}),
        ("docs/reference/guards.md", "How long a retention", {}),
        ("docs/reference/http.md", "Whose key it is", {}),
        ("docs/reference/http.md", "Why a 500 runs again", {}),
        ("docs/reference/sqs.md", None, MEMORY),
        ("docs/reference/brokers.md", "Kafka", MEMORY),
        ("docs/reference/proxy.md", "In your own server", LEDGER),
    ],
)
def test_a_page_that_needs_nothing(page, title, replaced):
    if once := run(page, {"__name__": "shop"}, replaced, title).get("once"):
        once.close()


@pytest.mark.parametrize(
    ("page", "printed", "fixture"),
    [
        ("docs/reference/postgres.md", "postgresql://worker@db/shop", "postgres15"),
        ("docs/reference/mysql.md", "mysql://worker:password@db/shop", "database"),
        ("docs/reference/redis.md", "redis://worker:password@host:6379/0", "redis"),
    ],
)
def test_a_page_of_a_ledger_on_a_server(page, printed, fixture, request):
    server = request.getfixturevalue(fixture)
    url = f"{server.url}?schema=pages_{next(_NUMBERS)}" if fixture == "postgres15" else getattr(server, "url", server)
    with clients.Redis.from_url(url) if fixture == "redis" else contextlib.nullcontext() as client:
        names = run(page, {"Once": Once, "client": client}, {printed: url})
        assert names["once"].using(name=f"pay{next(_NUMBERS)}").run("order-42", int) == 0
    names["once"].close()


def test_batches(ministack, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    queue = ministack.queue(f"pages-{next(_NUMBERS)}")
    ran, done = [], []

    def charge(order):
        ran.append(order["id"])

    def clean_up(folder):
        ran.append(folder)

    names = {"__name__": "app", "charge": charge, "clean_up": clean_up, "folder": "a folder"}
    names |= {"orders": [{"id": 1}, {"id": 2}, {"id": 1}], "receive": lambda: [{"id": 3}, {"id": 4}]}
    names["acknowledge"] = done.append
    run("docs/reference/batches.md", names, MEMORY | {"https://sqs.eu-west-1.amazonaws.com/123456789012/orders": queue})
    assert ran == [1, 2, "a folder"]
    assert done == [{"id": 1}, {"id": 2}, {"id": 1}, [{"id": 3}, {"id": 4}]]
    assert [json.loads(message["Body"]) for message in ministack.messages(queue)] == [{"id": 42}]
    names["once"].close()


def test_celery():
    from celery import _state

    before, shared = current_app._get_current_object(), set(_state._on_app_finalizers)
    urls = {"redis://localhost/0": "memory://", "redis://localhost/1": "cache+memory://"}
    urls["postgresql://localhost/shop"] = "memory:"
    try:
        page = run("docs/reference/celery.md", {"__name__": "celery_page"}, urls)
        for app in (page["charge"].app, page["app"]):
            app.conf.task_always_eager = True
        orders = [{"id": 1}, {"id": 1}, {"id": 2}]
        assert [page["charge"].delay(order).get() for order in orders] == ["charged 1", "charged 1", "charged 2"]
        assert [page["refund"].delay(order).get() for order in orders] == ["refunded 1", "refunded 1", "refunded 2"]
        assert page["report"].delay().get() == page["report"].delay().get() == "sent"
    finally:  # else every application of this process has the page's tasks
        before.set_current()
        _state._on_app_finalizers.intersection_update(shared)


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(charge=lambda line: None))
    (tmp_path / "orders.ndjson").write_text('{"id": 1}\n{"id": 2}\n{"id": 1}\n')
    run("docs/reference/commands.md", {})
    assert capsys.readouterr().out.startswith("done {'ran': 2, 'replayed': 1, 'failed': 0, ")


def test_dynamodb(dynoxide, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynoxide.url)
    keys = (None, {"id": "S"}, {"id": "S"})
    ledger, books, stock = (dynoxide.table(f"pages-{next(_NUMBERS)}", key) for key in keys)
    names = {"Once": Once, "Claim": Claim, "quote": lambda order: 1250, "order": {"id": "43", "book": "Emma"}}
    tables = {"dynamodb://orders-ledger": f"dynamodb://{ledger}", '"orders"': f'"{books}"', '"stock"': f'"{stock}"'}
    run("docs/reference/dynamodb.md", names, tables)
    assert [names["place"]({"id": "42", "book": "Emma"}) for _ in range(2)] == [{"price": 1250}] * 2
    assert len(dynoxide.items(books)) == 1
    assert [item["sold"] for item in dynoxide.items(stock)] == [{"N": "2"}]
    names["once"].close()


def test_sqlite(capsys):
    names = run("docs/reference/sqlite.md", {})
    assert capsys.readouterr().out == "order 42 is paid order 42 is paid\n"
    names["once"].close()


def test_transactions(postgres15):
    once = Once(f"{postgres15.url}?schema=pages_{next(_NUMBERS)}")
    with psycopg.connect(postgres15.url, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE payments (id text, amount int)")
        bank = SimpleNamespace(pay=lambda order, idempotency_key: {"amount": 7})
        names = {"__name__": "shop", "once": once, "connection": connection, "bank": bank}
        names |= {"Claim": Claim, "text": text, "ship": int}
        engine = create_engine(postgres15.url.replace("postgresql:", "postgresql+psycopg:"))
        with Session(engine) as session:
            session.execute(text("CREATE TEMPORARY TABLE orders (id text)"))
            session.commit()
            with pytest.warns(UserWarning, match="around this call is open"):
                names = run("docs/reference/transactions.md", names | {"session": session})
        engine.dispose()
        assert [names["charge"]({"id": "order-43"}) for _ in range(2)] == [{"amount": 7}] * 2
        with pytest.raises(Completed) as duplicate, once.transaction("order-42", connection):
            pytest.fail("it ran again")
        assert duplicate.value.result == {"paid": 1250}
        assert connection.execute("SELECT * FROM payments").fetchall() == [("order-42", 1250), ("order-43", 7)]
    once.close()


def works(names, url=None, send=None):
    """Send an order to the page's worker, unless the page does, run it until its queue is empty, and look for the effect."""
    if send:
        send(names["once"], url, {"id": 7, "cents": 500}, key="order-7")
    names["worker"].run(until_empty=True)
    assert names["once"].ledger.show("shop.charge:7")[0].status == "COMPLETED"
    names["once"].close()


def of_broker(title, replaced):
    return run("docs/reference/brokers.md", {"__name__": "shop"}, replaced | LEDGER, title)


def test_a_worker_of_rabbitmq(rabbitmq, monkeypatch):
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)
    queue = f"pages-{next(_NUMBERS)}"
    replaced = {"amqp://user:password@rabbit/": rabbitmq.url, '"orders"': f'"{queue}"', "amqp:orders": f"amqp:{queue}"}
    works(of_broker("RabbitMQ", replaced))


def test_a_worker_of_nats(nats):
    stream, subject = (f"pages-{next(_NUMBERS)}" for _ in range(2))
    replaced = {"nats://user:password@nats": nats.url, '"ORDERS"': f'"{stream}"', "orders.new": subject}
    works(of_broker("NATS JetStream", replaced), f"{nats.url}/{subject}", send_to_nats)


def test_a_worker_of_redis_streams():
    server = Redis(appendonly="yes")
    try:
        names = of_broker("Redis Streams", {"redis://user:password@redis/0": server.url})
        works(names, f"{server.url.replace('redis:', 'redis-stream:')}/orders", send_to_redis)
    finally:
        server.stop()


def test_http_clients(monkeypatch):
    posted = []
    monkeypatch.setattr(httpx.Client, "post", lambda client, url, **given: posted.append(given["headers"]))
    names = {"claim": SimpleNamespace(key=lambda *parts: f"{parts}"), "refund": {"id": 7}}
    run("docs/reference/service.md", names, title="HTTP clients that send a key")
    assert posted == [{"Idempotency-Key": "('refund', 7)"}]
    names["client"].close()
    names["once"].close()


def test_webhooks():
    names = {"once": Once("memory:"), "secret": "a secret", "on_github": print}
    names |= {"GitHub": GitHub, "WebhookEvent": WebhookEvent, "WebhookReceiver": WebhookReceiver}
    for title in ("Choose the answer", "Accept it, and handle it after", "Queue it"):
        run("docs/how-to/webhooks.md", names, title=title)
    assert names["on_twilio"](None).status == 200
    names["once"].close()


def test_a_store_of_your_own(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT / "toy")
    run("docs/explanation/architecture.md", {}, title="Check it")


def test_the_dashboard_in_an_application(monkeypatch):
    from starlette.applications import Starlette

    monkeypatch.setenv("DASHBOARD_TOKEN", "t" * 32)
    app, once = Starlette(), Once("memory:")
    run("docs/how-to/dashboard.md", {"app": app, "once": once, "os": os})
    assert DashboardVisitor(app, host="ops.example.com").get("/onceward/").status_code == 401
    once.close()


def test_redrive(ministack, dynoxide, aws, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynoxide.url)
    dead = ministack.queue(f"pages-{next(_NUMBERS)}")
    alive = ministack.queue(f"pages-{next(_NUMBERS)}", dead)
    ministack.send(dead, {"id": 1})
    ledger = dynoxide.table(f"pages-{next(_NUMBERS)}")
    tables = {"orders-ledger": ledger, '"orders-dlq"': f'"{dead}"', '"orders"': f'"{alive}"'}
    run("docs/how-to/runbook.md", {}, tables, "Move dead letters back: `onceward redrive`")["once"].close()
    assert capsys.readouterr().out.startswith("moved shop.charge:")
    assert ministack.left(dead) == 0


def test_http():
    from fastapi import FastAPI
    from flask import Flask
    from pydantic import BaseModel

    class Receipt(BaseModel):
        id: int

    names = {"once": Once("memory:"), "writes": [], "login_required": lambda view: view}
    names |= dict.fromkeys(("Receipt", "Payment", "Note"), Receipt) | {"current_user": SimpleNamespace(id=7)}
    names |= {"flask": Flask("shop"), "app": FastAPI(), "application": Flask("shop").wsgi_app}
    flask = {'@app.post("/orders")\n@login': '@flask.post("/orders")\n@login', "app.wsgi_app": "flask.wsgi_app"}
    run("docs/reference/http.md", names, MEMORY | flask)
    names["once"].close()


def test_the_first_page():
    names = run("docs/index.md", {})
    assert names["charge"].outcome({"id": 42, "total": 0}).value == {"paid": 1250}
    names["once"].close()


def test_guards(capsys):
    connection = sqlite3.connect("orders.db", isolation_level=None)
    connection.execute("CREATE TABLE payments (id INTEGER, total INTEGER)")
    bank = SimpleNamespace(pay=lambda card, idempotency_key: "paid")
    names = run("docs/reference/guards.md", {"bank": bank, "connection": connection})
    said = capsys.readouterr().out.splitlines()
    assert (said[0], said[2], said[3]) == ("{'paid': 1250} True 1", "charged 4242 True", "paid")
    assert connection.execute("SELECT * FROM payments").fetchall() == [(45, 1250)]
    assert names["once"].ledger.show("pay:order-46")[0].status == "COMPLETED"
    connection.close()
    names["once"].close()


class Bank:
    """A bank that knows keys."""

    def __init__(self):
        self.charged, self.refunded = {}, []

    def charge(self, order, amount, idempotency_key):
        return self.charged.setdefault(idempotency_key, f"receipt {len(self.charged) + 1}")

    def refund(self, order, amount):
        self.refunded.append(order)
        return "refunded"


async def test_guarding_the_tools_of_an_mcp_server():
    bank = Bank()
    names, memory = {"__name__": "shop", "bank": bank}, {"sqlite:///tools.db": "memory:"}
    page = run("docs/how-to/agents.md", names, memory, "The tools of an MCP server")
    run("docs/how-to/agents.md", page, title="Call a tool again after a lost reply")
    async with Client(page["server"]) as client:
        order = {"order": "o", "amount": 5, "idempotency_key": "a"}
        charges = [await client.call_tool("charge", order) for _ in range(2)]
        refunds = [await client.call_tool("refund", {"order": "o", "amount": 5}) for _ in range(2)]
        hints = {tool.name: tool.annotations.idempotent_hint for tool in (await client.list_tools()).tools}
        page["Client"] = lambda _: Client(page["server"])
        assert [await page["pay"]("p") for _ in range(2)] == ["receipt 2"] * 2
    assert [result.structured_content for result in charges] == [{"receipt": "receipt 1"}] * 2
    assert [mark(result, "replayed") for result in charges + refunds] == [None, True] * 2
    assert (text_of(refunds[1]), bank.refunded) == ("refunded", ["o"])
    assert hints == {"charge": True, "refund": True}


@pytest.fixture
def handle(monkeypatch):
    """The function ``handle`` of the loop of examples/sqs_loop, as a call that says which requests to SQS, or pauses, it made."""
    asked = []
    once = Once("memory:")
    sqs = SimpleNamespace(
        get_queue_url=lambda **_: {"QueueUrl": "url"},
        delete_message=lambda **_: asked.append("delete"),
        change_message_visibility=lambda **of: asked.append(0 < of["VisibilityTimeout"] <= 300),
    )

    @once(key="order.id", name="shop.charge", fingerprint="order.total", max_attempts=1)
    def charge(order):
        failures = {"failing": ValueError(), "cut off": StoreError(""), "huge": ResultUnavailable("", "")}
        if order["id"] in failures:
            raise failures[order["id"]]

    monkeypatch.setitem(sys.modules, "boto3", SimpleNamespace(client=lambda _: sqs))
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(charge=charge))
    code = (EXAMPLES / "sqs_loop" / "consumer.py").read_text(encoding="utf-8")
    exec(code.partition("\nwhile True:")[0], names := {})
    names["time"] = SimpleNamespace(sleep=lambda _: asked.append("pause"))  # the loop's: other threads sleep, too
    charge({"id": "done", "total": 1})
    once.acquire("busy", name="shop.charge", lease=300)
    with pytest.raises(ValueError):
        charge({"id": "failing", "total": 1})

    def handled(body):
        names["handle"]({"ReceiptHandle": "receipt", "MessageId": "id", "Body": body})
        return asked

    yield handled
    once.close()


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"id": "new", "total": 1}, ["delete"]),
        ({"id": "done", "total": 1}, ["delete"]),
        ({"id": "done", "total": 2}, []),  # Mismatch
        ({"id": "failing", "total": 1}, []),  # Parked
        ({"id": "busy", "total": 1}, [True]),
        ({"id": "cut off", "total": 1}, ["pause"]),
        ({"id": "huge", "total": 1}, ["delete"]),
        ({"total": 1}, []),  # KeyMissing
        ("{", []),
    ],
)
def test_a_loop_of_your_own_deletes_only_what_is_done(handle, body, asked):
    assert handle(body if isinstance(body, str) else json.dumps(body)) == asked
