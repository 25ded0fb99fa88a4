"""Signatures are those of botocore's signers, and of the examples in AWS's documentation."""

import datetime as dt
import random

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.endpoint_provider import EndpointProvider
from botocore.regions import EndpointResolver
from botocore.utils import percent_encode

from onceward.aws.sqs.queue_steps import SQS
from onceward.errors import StoreError
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.wire.calls import Call, ObjectCall
from onceward.wire.credentials import Credentials
from onceward.wire.endpoints import Endpoints
from onceward.wire.http_calls import Encoder
from tables import each

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
        encoder = Encoder(Endpoints(region, dynamodb=endpoint, sqs=endpoint))
        credentials = someone(chance)
        at = chance.uniform(0, 4e9)
        for _ in range(8):  # one encoder signs many, of which some are prepared already
            at += chance.choice([0, 0, 0.4, 1, 86400])
            credentials = someone(chance) if chance.random() < 0.1 else credentials
            body = {text(chance, ODD, 9): {"S": text(chance, ODD, 99)}, "B": {"B": chance.randbytes(5)}}
            service = chance.choice([DYNAMODB, SQS])
            action = chance.choice(["PutItem", "TransactWriteItems", "TagResource"])
            request = encoder.encode(Call(service, action, body), credentials, at)
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
        encoder = Encoder(Endpoints(region, s3=chance.choice([None, None, "http://127.0.0.1:9000"])))
        credentials, at = someone(chance), chance.uniform(0, 4e9)
        key = text(chance, ODD, 60)
        bucket = chance.choice(["results", "dotted.name", "a-b-c"])
        content = chance.choice([None, b"", chance.randbytes(50)])
        call = ObjectCall("GET" if content is None else "PUT", bucket, key, content)
        request = encoder.encode(call, credentials, at)
        theirs = botos(botocore.auth.S3SigV4Auth, request, credentials, service="s3", region=region, at=at)
        method, path, headers, body = sent(request.data)
        assert (method, body) == (call.method, content or b"")
        assert path.endswith("/" + percent_encode(key, safe="/~"))  # as botocore writes a key into a URL
        for name in ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            assert headers.get(name) == theirs.get(name)


def test_the_endpoints_are_those_that_botocore_knows(monkeypatch):
    import botocore.session

    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    session = botocore.session.Session()
    resolver = EndpointResolver(session.get_data("endpoints"))
    partitions = session.get_data("partitions")
    loader = session.get_component("data_loader")
    rules = {
        service: EndpointProvider(loader.load_service_model(service, "endpoint-rule-set-1"), partitions)
        for service in ("dynamodb", "sqs")
    }
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


@each(
    "url", ["tables:8000", "ftp://tables", "http://", "http://tables/path", "http://me:pass@tables", "http://tables:x"]
)
def test_an_endpoint_that_is_none_is_refused_without_being_repeated(url):
    with pytest.raises(ValueError, match="give an endpoint as") as caught:
        Endpoints("eu-west-1", dynamodb=url)
    assert "pass" not in str(caught.value)


@each("name", ["", "a/b", "evil.example/", "a\r\nx: y", "@host", "bücket"])
def test_a_name_that_no_bucket_has_is_refused(name):
    with pytest.raises(StoreError, match="not the name of a bucket") as caught:
        Endpoints("eu-west-1", s3=None).bucket(name)
    assert not caught.value.transient
