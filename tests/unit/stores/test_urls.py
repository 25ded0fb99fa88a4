"""URLs of stores: their parts, and the same text again."""

import sys
from subprocess import run

import pytest

from onceward import stores


@pytest.mark.parametrize(
    "url",
    [
        "memory:",
        "sqlite:///orders.db",
        "sqlite:////var/orders.db?timeout=3",
        "dynamodb://orders?region=eu-west-1&endpoint=http%3A//localhost%3A8000",
        "postgresql:///orders",
        "postgresql://me:word@[::1]:5433/orders?sslmode=require",
    ],
)
def test_the_parts_of_a_url_give_the_url_again(url, monkeypatch):
    seen = []
    monkeypatch.setattr(
        stores, "import_module", lambda name: type("M", (), {"open_url": lambda *given: seen.append(given)})
    )

    stores.open_store(url)

    ((parts, _),) = seen
    assert parts.geturl() == url
    assert parts.scheme == url.partition(":")[0]


def test_importing_onceward_loads_neither_msgspec_nor_the_protocol():
    code = "import sys, onceward; print(*sys.modules)"

    loaded = run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert not {"msgspec", "jmespath", "threading", "inspect", "urllib.parse", "onceward.core.steps"} & set(loaded)


def test_every_public_name_of_onceward_can_be_imported():
    code = "from onceward import *; import onceward; print(all(name in globals() for name in onceward.__all__))"

    assert run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "True\n"
