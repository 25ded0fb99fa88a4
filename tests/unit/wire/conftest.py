import os

import pytest

from fixtures import closing_fixture
from web.scripted import SECRET, TOKEN, Carrier

carrier = closing_fixture(lambda request: Carrier(request.param), params=["sync", "async"])


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
