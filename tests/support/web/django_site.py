"""A site of Django whose URLs lead to one view, and clients of it."""

import asyncio
import json

import django
from django.conf import settings
from django.http import JsonResponse
from django.test import AsyncClient, Client
from django.urls import path

settings.configure(
    SECRET_KEY="nobody's",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    LOGGING_CONFIG=None,
)
django.setup()

MIDDLEWARE = "onceward.web.django.IdempotencyMiddleware"
PATIENCE = 60
VIEWS = {}  # what the URLs lead to


def dispatch(request, **kwargs):
    return VIEWS["now"](request, **kwargs)


async def dispatch_async(request, **kwargs):
    return await VIEWS["now"](request, **kwargs)


later = path("later/<int:number>", dispatch_async)
urlpatterns = [path("orders/<int:number>", dispatch), later, path("named/<str:name>", dispatch)]


def statuses(once):
    return [record.status for record, _ in once.ledger.records()]


def post(url="/orders/7", data=b"{}", key='"k"', **how):
    headers = ({} if key is None else {"Idempotency-Key": key}) | how.pop("headers", {})
    return Client(raise_request_exception=False).post(url, data, "application/json", headers=headers, **how)


async def post_async(url="/later/7"):
    client = AsyncClient(raise_request_exception=False)
    return await client.post(url, b"{}", "application/json", headers={"Idempotency-Key": '"k"'})


def problem(response):
    assert response["Content-Type"] == "application/problem+json"
    return json.loads(response.content)["type"].partition("#")[2]


def run(main):
    return asyncio.run(asyncio.wait_for(main, PATIENCE))


class Order:
    """A view that says how often it ran; as a coroutine function, too."""

    def __init__(self):
        self.runs = 0
        self.bodies = []

    def __call__(self, request, number):
        self.runs += 1
        self.bodies.append(request.body)
        response = JsonResponse({"order": number, "run": self.runs}, status=201, headers={"X-Order": "7"})
        response.set_cookie("a", "b")
        return response

    async def later(self, request, number):
        await asyncio.sleep(0)
        return self(request, number)
