"""A ledger that cannot be used: each command says so in one sentence. None of them, and no worker, prints a password."""

import itertools
from urllib.parse import unquote

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.core.urls import shown_url
from onceward.kafka.topics import connection
from onceward.nats import NatsWorker
from onceward.rabbitmq import RabbitWorker
from onceward.redis_streams import RedisStreamsWorker
from onceward.stores import url_parts
from servers.needs import free_port
from tables import each

CHARACTERS = ["/", "@", "%", "?", "#", " ", ":", "&", "[", "%zz", "/?#@", "12/", "\\", "ü"]
SCHEMES = ("postgresql", "mysql", "mariadb", "redis", "rediss", "valkey")
# Each prints something of a ledger that cannot be reached.
COMMANDS = {
    "ls": (),
    "stats": (),
    "show": ("key",),
    "doctor": (),
    "exec": ("--key", "k"),
    "serve": ("--port", "0"),
    "pipe": ("--key", "line.id"),
    "init": (),
    "migrate": (),
    "purge": (),
    "relay": ("--once",),
    "dashboard": ("--port", "0"),
    "clear": ("key",),
    "park": ("key",),
    "mcp": (),
}
STATUS = {"doctor": 2, "exec": 69, "pipe": 4, "relay": 4}  # as their help says; 1 is a ledger's trouble of all others
WORDS = ("s3cr", "3twor")


def password(character):
    return WORDS[0] + character + WORDS[1]


def cases():
    """Each of three schemes with each character, and each of the two with each command."""
    commands = itertools.cycle(COMMANDS)
    return [(scheme, sign, next(commands)) for sign in CHARACTERS for scheme in ("postgresql", "mysql", "redis")]


def shows_none(text):
    return not any(word in text for word in WORDS)


def ran(folder, command, url):
    """Run a command on a ledger, and return its status, and all that it has said."""
    after = ("--", "true") if command in {"exec", "pipe"} else ()
    result = Cli(folder).run(command, *COMMANDS[command], "--store", url, *after, input=b'{"id": 1}\n')
    return result.returncode, result.stderr + (result.stdout or b"").decode()


@pytest.fixture(scope="module")
def port():
    return free_port()


@each(("scheme", "character", "command"), cases())
def test_no_command_prints_a_password(scheme, character, command, tmp_path, port):
    url = f"{scheme}://user:{password(character)}@127.0.0.1:{port}/shop?timeout=0.2"
    status, told = ran(tmp_path, command, url)
    assert status not in {0, None}
    assert told.strip()
    assert shows_none(told), told


@each(("scheme", "command"), list(zip(itertools.cycle(["postgresql", "mysql", "redis"]), COMMANDS, strict=False)))
def test_each_command_says_in_one_sentence_what_is_wrong(scheme, command, tmp_path, port):
    status, told = ran(
        tmp_path, command, f"{scheme}://u@127.0.0.1:{port}/{0 if scheme == 'redis' else 'shop'}?timeout=2"
    )
    assert (status, str(port) in told) == (STATUS.get(command, 1), True), told
    assert len(told.strip().splitlines()) <= 3, told


@each("scheme", SCHEMES)
@each("character", CHARACTERS)
def test_a_password_is_taken_as_it_is_meant_or_the_error_names_what_to_write(scheme, character):
    url = f"{scheme}://user:{password(character)}@host:5432/shop"
    assert shows_none(shown_url(url))
    try:
        parts, _ = url_parts(url)
    except ValueError as error:
        told = str(error)
        assert f"%{ord(character[0]):02X}" in told
    else:
        login, _, told = parts.netloc.rpartition("@")
        assert (unquote(login), told, parts.path) == (f"user:{unquote(password(character))}", "host:5432", "/shop")
    assert shows_none(told)


@each(
    "url",
    [
        "postgresql://h:5432/d?user=a@b&password={}",
        "mysql://u:{}@h/d?ssl_ca=/a@b",
        "redis://h/0?a={}@&a=1",
        "postgresql://u:{}?a=b@h/d",
        "redis://host/0?sentinel_password={}&timeout=1",
    ],
)
def test_a_secret_beside_or_in_the_query_is_not_shown(url):
    told = shown_url(url.format("/".join(WORDS)))
    assert shows_none(told), told


@each(
    ("url", "scheme"),
    [
        ("postgres+asyncpg://u@h/d", "postgresql"),
        ("MariaDB+asyncmy://u@h/d", "mariadb"),
        ("sqlite+aiosqlite:///a.db", "sqlite"),
    ],
)
def test_a_url_as_other_libraries_write_it_is_understood(url, scheme):
    assert url_parts(url)[0].scheme == scheme
    Once(url)


@each("url", ["rediss+ssl://:pw@h/0", "redis+socket:///run/redis.sock", "dynamodb+https://t"])
def test_another_one_is_refused_with_the_url_to_write(url):
    with pytest.raises(ValueError, match=f"write {url.partition('+')[0]}://") as refused:
        Once(url)
    assert "pw" not in str(refused.value)


@each(
    "url",
    [
        "sqlite:///a.db?key=1&password={}",
        "dynamodb://user:{}@table?region=eu-west-1",
        "memory:?token={}",
        "host=127.0.0.1 port=1 user=u password={}",
        "redis://:{}",
        "postgresql:user:{}@host",
        "{}@host",
        "http//u:{}@h",
    ],
)
def test_what_is_no_url_of_a_store_shows_no_secret(url):
    for secret in ("".join(WORDS), password("/")):
        with pytest.raises((ValueError, TypeError)) as refused:
            Once(url.format(secret))
        assert shows_none(str(refused.value))


@each("servers", ["user:{}@127.0.0.1:1", "kafka://user:{}@127.0.0.1:1"])
def test_brokers_of_kafka_with_a_login_are_refused(servers):
    with pytest.raises(ValueError, match="sasl_plain_password") as refused:
        connection(servers.format(password("/")))
    assert WORDS[0] not in str(refused.value)


@each("character", CHARACTERS)
@each(("worker", "scheme"), [(NatsWorker, "nats"), (RabbitWorker, "amqp"), (RedisStreamsWorker, "redis")])
def test_no_worker_prints_a_password(worker, scheme, character, port):
    url = f"{scheme}://user:{password(character)}@127.0.0.1:{port}/"
    with pytest.raises(Exception) as refused:
        worker(Once("memory:", name="n"), "orders", print, key="order.id", url=url).run(until_empty=True)
    assert shows_none(str(refused.value))
    with pytest.raises(TypeError, match="give an Once") as refused:
        worker(url, "orders", print)
    assert shows_none(str(refused.value))
