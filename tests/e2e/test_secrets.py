"""No command and no worker prints a password, whatever characters it has and however its URL is written."""

import itertools

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.core.urls import shown_url
from onceward.kafka.topics import connection
from onceward.nats import NatsWorker
from onceward.stores import url_parts
from servers.needs import free_port
from tables import each

CHARACTERS = ["/", "@", "%", "?", "#", " ", ":", "&", "=", "+", "[", "%2F", "%zz", "/?#@", "@/", "12/", "\\", "ü"]
SQL = ("postgresql", "mysql")
SCHEMES = (*SQL, "mariadb", "redis", "rediss", "valkey")
# Each prints something of a ledger that cannot be reached.
COMMANDS = {
    "ls": ("ls", "--store", None),
    "stats": ("stats", "--store", None),
    "show": ("show", "key", "--store", None),
    "doctor": ("doctor", "--store", None),
    "exec": ("exec", "--key", "k", "--store", None, "--", "true"),
    "serve": ("serve", "--port", "0", "--store", None),
    "pipe": ("pipe", "--key", "line.id", "--store", None, "--", "true"),
    "init": ("init", "--store", None),
    "migrate": ("migrate", "--store", None),
    "purge": ("purge", "--store", None),
    "relay": ("relay", "--once", "--store", None),
    "dashboard": ("dashboard", "--port", "0", "--store", None),
}
WORDS = ("s3cr", "3twor")


def password(character):
    return WORDS[0] + character + WORDS[1]


def cases():
    """Each scheme with each character, and each of the two with each command."""
    commands = itertools.cycle(COMMANDS)
    return [
        (scheme, character, next(commands)) for character in CHARACTERS for scheme in ("postgresql", "mysql", "redis")
    ]


@pytest.fixture(scope="module")
def port():
    return free_port()


@each(("scheme", "character", "command"), cases())
def test_no_command_prints_a_password(scheme, character, command, tmp_path, port):
    url = f"{scheme}://user:{password(character)}@127.0.0.1:{port}/shop?timeout=0.2"
    result = Cli(tmp_path).run(*(url if part is None else part for part in COMMANDS[command]), input=b'{"id": 1}\n')
    assert result.returncode not in {0, None}
    told = result.stderr + (result.stdout or b"").decode()
    assert told.strip()
    assert not any(word in told for word in WORDS), told


def test_run_prints_no_password_of_a_pipeline(tmp_path, port):
    cli = Cli(tmp_path)
    url = f"postgresql://user:{password('/')}@127.0.0.1:{port}/shop?timeout=1"
    cli.write(
        "p.yaml", f"name: p\nstore: {url}\nsource: {{lines: {{file: '-'}}}}\nkey: line.id\nsink: {{stdout: {{}}}}\n"
    )
    for command in ("run", "vet"):
        told = cli.run(command, "p.yaml", input=b'{"id": 1}\n')
        assert not any(word in told.stderr for word in WORDS), told.stderr


@each("scheme", SCHEMES)
@each("character", CHARACTERS)
def test_a_password_is_taken_as_it_is_meant_or_the_error_names_what_to_write(scheme, character):
    from urllib.parse import unquote

    url = f"{scheme}://user:{password(character)}@host:5432/shop"
    assert not any(word in shown_url(url) for word in WORDS)
    try:
        parts, _ = url_parts(url)
    except ValueError as error:
        told = str(error)
    else:
        told = f"%{ord(character[0]):02X}"
        login, _, place = parts.netloc.rpartition("@")
        assert (unquote(login), place, parts.path) == (f"user:{unquote(password(character))}", "host:5432", "/shop")
    assert f"%{ord(character[0]):02X}" in told
    assert not any(word in told for word in WORDS)


@each("name", ["password", "sslpassword", "sentinel_password", "PASSWD", "token"])
def test_a_value_of_the_query_that_is_named_like_a_secret_is_not_shown(name):
    assert shown_url(f"redis://host/0?{name}={password('&')}&timeout=1") == f"redis://host/0?{name}=***&***&timeout=1"


@each(
    "url",
    [
        "postgresql://h:5432/d?user=a@b&password={}",
        "mysql://u:{}@h/d?ssl_ca=/a@b",
        "redis://h/0?a={}@&a=1",
        "postgresql://u:{}?a=b@h/d",
    ],
)
def test_an_at_sign_in_the_query_uncovers_nothing(url):
    told = shown_url(url.format("/".join(WORDS)))
    assert not any(word in told for word in WORDS), told


@each(
    ("url", "scheme"),
    [
        ("postgres://u@h/d", "postgresql"),
        ("postgresql+psycopg://u@h/d", "postgresql"),
        ("postgres+asyncpg://u@h/d", "postgresql"),
        ("mysql+pymysql://u@h/d", "mysql"),
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
        "hostaddr=::1 password={}",
    ],
)
def test_a_store_that_is_not_written_as_it_must_be_shows_no_secret(url):
    with pytest.raises(ValueError, match=r"write|unknown|nothing after|names no store") as refused:
        Once(url.format("".join(WORDS)))
    assert WORDS[0] not in str(refused.value)


def test_a_worker_that_is_given_a_url_in_place_of_a_ledger_shows_no_secret():
    with pytest.raises(TypeError, match="give an Once") as refused:
        NatsWorker(f"redis://:{password('/')}@host/0", "orders", len)
    assert WORDS[0] not in str(refused.value)


@each("servers", ["user:{}@127.0.0.1:1", "kafka://user:{}@127.0.0.1:1"])
def test_brokers_of_kafka_with_a_login_are_refused(servers):
    with pytest.raises(ValueError, match="sasl_plain_password") as refused:
        connection(servers.format(password("/")))
    assert WORDS[0] not in str(refused.value)


@each("url", ["redis://:{}", "postgresql:user:{}@host", "{}@host", "mysql://user:{}", "http//u:{}@h"])
def test_what_is_no_url_shows_nothing_either(url):
    assert WORDS[0] not in shown_url(url.format(password("/")))
    with pytest.raises((ValueError, TypeError)) as refused:
        Once(url.format(password("/")))
    assert not any(word in str(refused.value) for word in WORDS)


@each("character", CHARACTERS)
def test_no_worker_prints_a_password(character, port):
    from onceward.nats import NatsWorker
    from onceward.rabbitmq import RabbitWorker
    from onceward.redis_streams import RedisStreamsWorker

    once = Once("memory:", name="n")
    for worker, scheme in ((NatsWorker, "nats"), (RabbitWorker, "amqp"), (RedisStreamsWorker, "redis")):
        url = f"{scheme}://user:{password(character)}@127.0.0.1:{port}/"
        with pytest.raises(Exception) as refused:
            worker(once, "orders", print, key="order.id", url=url).run(until_empty=True)
        assert not any(word in str(refused.value) for word in WORDS)
