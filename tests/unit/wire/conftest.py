import os

import pytest

from web.scripted import SECRET, TOKEN, Carrier


@pytest.fixture(params=["sync", "async"])
def carrier(request):
    made = Carrier(request.param)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
