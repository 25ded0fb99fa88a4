"""Credentials and the region come from where botocore takes them, are renewed as it does, and sign as its signers do."""

import asyncio
import datetime as dt
import os
import random
import sys
import threading
import time
from pathlib import Path

import botocore.auth
import botocore.session
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.endpoint_provider import EndpointProvider
from botocore.regions import EndpointResolver
from botocore.utils import percent_encode

from onceward.aws.sqs.address import SQS
from onceward.errors import StoreError
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.testing.clock import ManualClock
from onceward.wire import calls, http_calls, nonblocking
from onceward.wire.credentials import CHECKED, Credentials, CredentialSource, find_region
from onceward.wire.endpoints import Endpoints
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


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("chosen", [None, "other"])
def test_profile_and_environment_are_ordered_as_botocore_orders_them(monkeypatch, tmp_path, keys, chosen):
    profiles(tmp_path)
    if keys:
        environment(monkeypatch)
    if chosen:
        monkeypatch.setenv("AWS_PROFILE", chosen)
    source = CredentialSource()
    theirs = botocore.session.Session().get_credentials().get_frozen_credentials()
    assert (source.at_hand() or source.ask()).access_key == theirs.access_key


def test_the_region_is_the_one_given_or_the_environments_or_the_profiles_and_else_the_error_says_what_to_do(
    monkeypatch, tmp_path
):
    with pytest.raises(StoreError, match="set AWS_REGION"):
        find_region()
    for region in ("eu-west-1.example.org/", "eu-west-1\r\n", "ü"):
        with pytest.raises(StoreError, match="not the name of an AWS region"):
            find_region(region)
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
    monkeypatch.setattr("onceward.wire.credentials._chain", lambda: chain)
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_during_a_renewal_can_renew(monkeypatch):
    chain = Ending(30)
    monkeypatch.setattr("onceward.wire.credentials._chain", lambda: chain)
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
    wire = nonblocking.AsyncHttpWire(Endpoints("eu-west-1", dynamodb="http://127.0.0.1:1"), CredentialSource())
    sends = [asyncio.ensure_future(wire.send(calls.Call(DYNAMODB, "GetItem", {}), time.time())) for _ in range(20)]
    turns = 0
    while not all(send.done() for send in sends):
        await asyncio.sleep(0.01)
        turns += 1
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(error, StoreError) and error.transient for error in errors)  # nobody listens there
    assert turns > 10
    assert len(count.read_text()) == 1


REGIONS = ["eu-west-1", "us-east-1", "cn-north-1", "us-gov-west-1", "ap-southeast-2"]
ODD = "aZ09-_.~ !\"#$%&'()*+,/:;<=>?@[\\]^`{|}äß€漢字🔑\u202e\x7f"


def text(chance: random.Random, alphabet: str, longest: int) -> str:
    return "".join(chance.choices(alphabet, k=chance.randint(1, longest)))


def someone(chance: random.Random) -> Credentials:
    plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/+="
    token = text(chance, plain, 900) if chance.random() < 0.5 else None
    return Credentials(text(chance, plain[:26], 20), text(chance, plain, 80), token)


def sent(data: bytes) -> tuple[str, str, dict[str, str], bytes]:
    head, _, content = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    method, path, version = first.split(" ")
    assert version == "HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(headers) == len(lines)
    assert headers["content-length"] == str(len(content))
    return method, path, headers, content


@pytest.fixture
def botos(monkeypatch):
    def sign(kind, request, credentials, *, service, region, at) -> dict[str, str]:
        moment = dt.datetime.fromtimestamp(int(at), dt.UTC)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
        method, path, headers, content = sent(request.data)
        keep = {name: value for name, value in headers.items() if name in {"host", "x-amz-target"}}
        theirs = AWSRequest(method, f"{request.origin.scheme}://{headers['host']}{path}", headers=keep, data=content)
        kind(BotoCredentials(*credentials), service, region).add_auth(theirs)
        return {name.lower(): value for name, value in theirs.headers.items()}

    return sign


@pytest.mark.slow
def test_a_request_is_signed_as_botocore_signs_it(botos):
    chance = random.Random(20260)
    for _ in range(300):
        region = chance.choice(REGIONS)
        endpoint = chance.choice([None, "http://127.0.0.1:8000", "https://localhost", "http://[::1]:8000"])
        encoder = http_calls.Encoder(Endpoints(region, dynamodb=endpoint, sqs=endpoint))
        credentials = someone(chance)
        at = chance.uniform(0, 4e9)
        for _ in range(8):  # one encoder signs many, of which some are prepared already
            at += chance.choice([0, 0, 0.4, 1, 86400])
            credentials = someone(chance) if chance.random() < 0.1 else credentials
            body = {text(chance, ODD, 9): {"S": text(chance, ODD, 99)}, "B": {"B": chance.randbytes(5)}}
            service = chance.choice([DYNAMODB, SQS])
            action = chance.choice(["PutItem", "TransactWriteItems", "TagResource"])
            request = encoder.encode(calls.Call(service, action, body), credentials, at)
            theirs = botos(botocore.auth.SigV4Auth, request, credentials, service=service.name, region=region, at=at)
            headers = sent(request.data)[2]
            domain = "amazonaws.com.cn" if region == "cn-north-1" else "amazonaws.com"
            assert str(request.origin) == (endpoint or f"https://{service.name}.{region}.{domain}")
            assert headers["host"] == request.origin.authority
            assert headers["x-amz-target"] == f"{service.target}.{action}"
            assert headers["content-type"] == "application/x-amz-json-1.0"
            for name in ("authorization", "x-amz-date", "x-amz-security-token"):
                assert headers.get(name) == theirs.get(name)


@pytest.mark.slow
def test_a_request_to_s3_is_signed_as_botocore_signs_it(botos):
    chance = random.Random(3)
    for _ in range(2000):
        region = chance.choice(REGIONS)
        encoder = http_calls.Encoder(Endpoints(region, s3=chance.choice([None, None, "http://127.0.0.1:9000"])))
        credentials, at = someone(chance), chance.uniform(0, 4e9)
        key = text(chance, ODD, 60)
        bucket = chance.choice(["results", "dotted.name", "a-b-c"])
        content = chance.choice([None, b"", chance.randbytes(50)])
        call = calls.ObjectCall("GET" if content is None else "PUT", bucket, key, content)
        request = encoder.encode(call, credentials, at)
        theirs = botos(botocore.auth.S3SigV4Auth, request, credentials, service="s3", region=region, at=at)
        method, path, headers, body = sent(request.data)
        assert (method, body) == (call.method, content or b"")
        assert path.endswith("/" + percent_encode(key, safe="/~"))  # as botocore writes a key into a URL
        for name in ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            assert headers.get(name) == theirs.get(name)


def test_the_endpoints_are_those_that_botocore_knows():
    session = botocore.session.Session()
    resolver = EndpointResolver(session.get_data("endpoints"))
    partitions = session.get_data("partitions")
    loader = session.get_component("data_loader")
    load = lambda service: loader.load_service_model(service, "endpoint-rule-set-1")
    rules = {service: EndpointProvider(load(service), partitions) for service in ("dynamodb", "sqs")}
    seen = 0
    for partition in session.get_available_partitions():
        for region in session.get_available_regions("dynamodb", partition):
            endpoints = Endpoints(region, dynamodb=None, sqs=None, s3=None)
            for service, provider in rules.items():
                theirs = provider.resolve_endpoint(Region=region, UseDualStack=False, UseFIPS=False)
                assert str(endpoints.of(service)) == theirs.url
            suffix = resolver.construct_endpoint("dynamodb", region)["dnsSuffix"]
            assert endpoints.bucket("b") == (("https", f"b.s3.{region}.{suffix}", 443), "/")
            assert endpoints.bucket("b.c") == (("https", f"s3.{region}.{suffix}", 443), "/b.c/")
            seen += 1
    assert seen > 30


def test_the_environment_may_name_endpoints(monkeypatch):
    def endpoints(**given):
        return Endpoints("eu-west-1", **{"dynamodb": None, "sqs": None, "s3": None, **given})

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://everything:1")
    assert str(endpoints().of("dynamodb")) == str(endpoints().of("sqs")) == "http://everything:1"
    assert endpoints().bucket("b") == (("http", "everything", 1), "/b/")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://tables:2/")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://objects")
    assert str(endpoints().of("dynamodb")) == "http://tables:2"
    assert endpoints().bucket("b") == (("https", "objects", 443), "/b/")
    assert str(endpoints(dynamodb="http://given:3").of("dynamodb")) == "http://given:3"


@each("url", ["tables:8000", "ftp://tables", "http://", "http://tables/p", "http://me:pass@tables", "http://tables:x"])
def test_an_endpoint_that_is_none_is_refused_without_being_repeated(url):
    with pytest.raises(ValueError, match="give an endpoint as") as caught:
        Endpoints("eu-west-1", dynamodb=url)
    assert "pass" not in str(caught.value)


@each("name", ["", "a/b", "evil.example/", "a\r\nx: y", "@host", "bücket"])
def test_a_name_that_no_bucket_has_is_refused(name):
    with pytest.raises(StoreError, match="not the name of a bucket") as caught:
        Endpoints("eu-west-1", s3=None).bucket(name)
    assert not caught.value.transient
