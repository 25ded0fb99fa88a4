"""Where credentials and the region come from, in botocore's order, and how they are renewed."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from onceward.errors import StoreError
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.testing.clock import ManualClock
from onceward.wire import credentials as module
from onceward.wire.calls import Call
from onceward.wire.credentials import CHECKED, Credentials, CredentialSource, find_region
from onceward.wire.endpoints import Endpoints
from onceward.wire.nonblocking import AsyncHttpWire
from tables import each


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    """A machine without any AWS configuration."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def environment(monkeypatch, key="AKIAENV", token=None):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)


def test_only_the_access_keys_id_is_shown():
    shown = repr(Credentials("AKIA", "very-secret", "very-token")) + str(Credentials("AKIA", "very-secret"))
    assert "AKIA" in shown
    assert "very" not in shown


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_a_line_end_in_a_key_is_refused_and_not_shown(monkeypatch, name):
    environment(monkeypatch, token="token")
    monkeypatch.setenv(name, "hush\r\nx-header: 1")
    with pytest.raises(StoreError, match="line end") as caught:
        CredentialSource().at_hand()
    assert "hush" not in str(caught.value)


@each(
    ("environment", "told"),
    [
        ({}, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "AKIA"}, "AWS_SECRET_ACCESS_KEY is not"),
        ({"AWS_PROFILE": "nowhere"}, "nowhere"),
        (None, "pip install botocore"),
    ],
)
def test_what_is_missing_is_told(environment, told):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        if environment is None:
            patch.setitem(sys.modules, "botocore.session", None)
        source = CredentialSource()
        with pytest.raises(StoreError, match=told) as caught:
            source.at_hand() or source.ask()
    assert not caught.value.transient


def profiles(tmp_path):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n"
        "[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = s\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = eu-central-1\n[profile other]\nregion = eu-north-1\n")


def theirs():
    import botocore.session

    return botocore.session.Session().get_credentials().get_frozen_credentials().access_key


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("chosen", [None, "other"])
def test_profile_and_environment_are_ordered_as_botocore_orders_them(monkeypatch, tmp_path, keys, chosen):
    profiles(tmp_path)
    if keys:
        environment(monkeypatch)
    if chosen:
        monkeypatch.setenv("AWS_PROFILE", chosen)
    source = CredentialSource()
    assert (source.at_hand() or source.ask()).access_key == theirs()


def test_the_region_is_the_one_given_or_the_environments_or_the_profiles(monkeypatch, tmp_path):
    profiles(tmp_path)
    assert find_region() == "eu-central-1"
    with monkeypatch.context() as chosen:
        chosen.setenv("AWS_PROFILE", "other")
        assert find_region() == "eu-north-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert find_region() == "us-east-2"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert find_region() == "us-west-2"
    assert find_region("sa-east-1") == "sa-east-1"


@pytest.mark.parametrize("region", ["eu-west-1.example.org/", "eu-west-1\r\n", "ü"])
def test_a_region_that_cannot_be_one_is_refused(region):
    with pytest.raises(StoreError, match="not the name of an AWS region"):
        find_region(region)


def test_without_a_region_the_error_says_what_to_do():
    with pytest.raises(StoreError, match="set AWS_REGION"):
        find_region()


def process(tmp_path: Path, lasts: float, slow: float = 0) -> Path:
    """Make a profile whose credentials come from a program, new ones each time, that last for so many seconds."""
    count = tmp_path / "count"
    program = tmp_path / "program.py"
    program.write_text(
        "import json, time, datetime, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "number = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (number + 1))\n"
        f"time.sleep({slow})\n"
        f"end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={lasts})\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'AKIA{number}', 'SecretAccessKey': 's', 'SessionToken': 't',"
        " 'Expiration': end.isoformat()}))\n"
    )
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    return count


def test_credentials_that_end_are_renewed_by_botocore(tmp_path):
    clock = ManualClock()
    count = process(tmp_path, lasts=800)  # less than botocore's 15 minutes: each look renews them
    source = CredentialSource(clock=clock)
    first = source.ask()
    assert source.at_hand() is first
    clock.advance(CHECKED)
    before = count.read_text()
    assert source.at_hand() is None
    assert source.ask().access_key == f"AKIA{len(before)}"
    assert len(count.read_text()) == len(before) + 1


def test_credentials_refused_many_times_at_once_are_replaced_once(tmp_path):
    clock = ManualClock()
    count = process(tmp_path, lasts=3600)
    source = CredentialSource(clock=clock)
    source.ask()
    clock.advance(5)
    for _ in range(10):
        assert source.expire()
        assert (source.at_hand() or source.ask()).access_key == "AKIA1"
    assert len(count.read_text()) == 2


def test_a_renewal_that_fails_is_transient_and_a_later_one_succeeds(tmp_path):
    clock = ManualClock()
    process(tmp_path, lasts=3600)
    source = CredentialSource(clock=clock)
    source.ask()
    program = tmp_path / "program.py"
    good = program.read_text()
    program.write_text("raise SystemExit('no such luck')")
    clock.advance(5)
    source.expire()
    with pytest.raises(StoreError, match="no such luck") as caught:
        source.ask()
    assert caught.value.transient
    program.write_text(good)
    assert source.ask().access_key == "AKIA1"


class Ending:
    """A chain of botocore's whose renewal waits to be let through."""

    def __init__(self, left: float):
        self.left = left
        self.asked = threading.Event()
        self.go = threading.Event()

    def refresh_needed(self, within=None):
        return self.left < (900 if within is None else within)

    def get_frozen_credentials(self):
        if self.refresh_needed():
            self.asked.set()
            assert self.go.wait(60)
        return Credentials("AKIA", "s", "t")


@pytest.mark.parametrize(("left", "goes_on"), [(300, True), (30, False)])
def test_while_one_thread_renews_others_use_credentials_that_still_last(monkeypatch, left, goes_on):
    clock = ManualClock()
    chain = Ending(3600)
    monkeypatch.setattr(module, "_chain", lambda: chain)
    source = CredentialSource(clock=clock)
    held = source.ask()
    clock.advance(CHECKED)
    chain.left = left
    thread = threading.Thread(target=source.ask)
    thread.start()
    assert chain.asked.wait(60)
    assert (source.at_hand() is held) == goes_on
    chain.go.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_during_a_renewal_can_renew(monkeypatch):
    chain = Ending(30)
    monkeypatch.setattr(module, "_chain", lambda: chain)
    source = CredentialSource()
    thread = threading.Thread(target=source.ask)
    thread.start()
    assert chain.asked.wait(60)
    child = os.fork()
    if child == 0:
        chain.left = 3600
        threading.Timer(5, os._exit, [1]).start()
        os._exit(0 if source.ask().access_key == "AKIA" else 2)
    chain.go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


async def test_getting_credentials_does_not_hold_up_the_event_loop(tmp_path):
    count = process(tmp_path, lasts=3600, slow=0.8)
    wire = AsyncHttpWire(Endpoints("eu-west-1", dynamodb="http://127.0.0.1:1"), CredentialSource())
    sends = [asyncio.ensure_future(wire.send(Call(DYNAMODB, "GetItem", {}), time.time())) for _ in range(20)]
    turns = 0
    while not all(send.done() for send in sends):
        await asyncio.sleep(0.01)
        turns += 1
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(error, StoreError) and error.transient for error in errors)  # nobody listens there
    told = turns
    assert told > 10
    assert len(count.read_text()) == 1
