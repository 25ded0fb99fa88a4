"""What may never be shown: passwords of ledgers and brokers, by any command or worker; and hostile text on its way to a terminal."""

import ast
import contextlib
import itertools
import json
import logging
import os
import pty
import subprocess
import traceback
from pathlib import Path
from urllib.parse import unquote

import pydantic
import pytest
from typer.testing import CliRunner

import onceward.cli
from commands.command_line import Cli
from onceward import Once, terminal
from onceward.aws import on_sqs
from onceward.cli.app import command_line
from onceward.cli.report import Heard, WorkReport
from onceward.core.drivers import drive
from onceward.core.urls import shown_url
from onceward.kafka.topics import connection
from onceward.nats import NatsWorker
from onceward.outbox.targets import open_target
from onceward.rabbitmq import RabbitWorker
from onceward.redis_streams import RedisStreamsWorker
from onceward.stores import url_parts
from onceward.testing.bench import claim_of
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


def test_a_password_that_libpq_cannot_read_is_not_shown():
    with pytest.raises(ValueError, match="percent-encoded") as refused:
        Once(f"postgresql://u:{'%00'.join(WORDS)}@h/d")
    assert shows_none(str(refused.value))


@each("url", ["rediss+ssl://:pw@h/0", "redis+socket:///run/redis.sock", "dynamodb+https://t"])
def test_another_one_is_refused(url):
    with pytest.raises(ValueError, match="names no store") as refused:
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
@each(
    ("worker", "scheme"),
    [(NatsWorker, "nats://"), (NatsWorker, ""), (RabbitWorker, "amqp://"), (RedisStreamsWorker, "redis://")],
)
def test_no_worker_prints_a_password(monkeypatch, worker, scheme, character, port):
    monkeypatch.setattr("onceward.nats.broker._PATIENCE", 0.2)
    url = f"{scheme}user:{password(character)}@127.0.0.1:{port}/"
    with pytest.raises(Exception) as refused:
        worker(Once("memory:", name="n"), "orders", print, url=url).run(until_empty=True)
    assert shows_none("".join(traceback.format_exception(refused.value)))
    with pytest.raises(TypeError, match="give an Once") as refused:
        worker(url, "orders", print)
    assert shows_none(str(refused.value))


@each("character", CHARACTERS)
@each(
    "address",
    [
        "amqp://user:{}@host:5672/?queue=q",
        "nats://user:{}@host:4222/s",
        "redis-stream://user:{}@host:6379/0/s",
        "kafka://user:{}@host:9092/t",
        "https://user:{}@host/hook",
    ],
)
def test_no_target_takes_a_password_which_the_ledger_would_hold(address, character):
    with pytest.raises(ValueError, match=r"\w") as refused:
        open_target(address.format(password(character)))
    assert shows_none("".join(traceback.format_exception(refused.value)))


@each(
    ("arguments", "says"),
    [
        (["show", "a:k"], "next"),
        (["redrive", "dlq", "--to", "orders"], "and --name"),
    ],
)
def test_a_command_that_names_its_ledger_hides_its_password(redis, cli, arguments, says):
    url = f"redis://default:{''.join(WORDS)}@{redis.url.partition('://')[2]}"
    for name in ("a", "b"):
        Once(url, name=name).run("k", int)
    told = cli.run(*arguments, "--store", url)
    assert says in (text := told.stderr + told.stdout.decode())
    assert shows_none(text), text


@each("command", [["work", "--call", "shop:pay"], ["redrive"], ["redrive", "dlq", "--to"]])
@each("place", ["amqp://user:{}@host/q", "redis://user:{}@host", "//user:{}@host/q"])
def test_no_command_prints_a_password_in_the_place_of_a_queue(place, command):
    for character in CHARACTERS:
        told = CliRunner().invoke(command_line(), [*command, place.format(password(character))])
        assert told.exit_code == 2, told.output
        assert shows_none(told.output), told.output


CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
HOSTILE = f"a{CLIPBOARD}\x1b[2J\x9b31m\u202egnp\u2066\u2028b\x7f\r\nonceward: all is well"
CARD = "4111111111111111"


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


@pytest.fixture
def hostile(cli):
    """A ledger that others wrote to: each text of a record is hostile."""
    once = cli.once()
    once.acquire("any").release()
    texts = dict.fromkeys(("fingerprint", "error", "worker"), HOSTILE)
    for key, status in ((f"n:{HOSTILE}", "PARKED"), (f"m:{HOSTILE}", "RELEASED"), (f"o:{HOSTILE}", "COMPLETED")):
        result = HOSTILE if status != "PARKED" else None
        write = claim_of(key, HOSTILE, status=status, result=result, lease=0.0, keep=None, **texts)
        drive(once.store.insert(write), once.store)
    once.close()
    return cli


def is_harmless(told):
    text = told.decode() if isinstance(told, bytes) else told
    return all(c.isprintable() or c in "\n\t" for c in text)


def on_a_terminal(cli, *arguments):
    """Run a command with all its streams on a terminal, and return what the terminal was sent."""
    cli.env["TERM"] = "xterm"
    controller, terminal = pty.openpty()
    process = cli.start(*arguments, stdout=terminal, stderr=terminal)
    os.close(terminal)
    told = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while piece := os.read(controller, 65536):
            told += piece
    os.close(controller)
    process.wait(60)
    return told


def test_what_is_printable_stays_and_all_else_is_escaped():
    assert terminal.line("é 漢 👍 a  b") == "é 漢 👍 a  b"
    assert terminal.line(HOSTILE) == (
        "a\\u001b]52;c;cm0gLXJm\\u0007\\u001b[2J\\u009b31m\\u202egnp\\u2066 b\\u007f onceward: all is well"
    )
    assert terminal.lines("a\tb\r\nc\rd\x1b\U000e0001\udcff") == "a\tb\nc\nd\\u001b\\udb40\\udc01\\udcff"
    for value in ({"a": [HOSTILE]}, {"a": [HOSTILE, "\ud800"]}):
        assert is_harmless(terminal.json(value))
        assert json.loads(terminal.json(value)) == value
    assert [terminal.encoded(text) for text in ("a\udcff", "a\udcff\ud800")] == [b"a\xff", b"a\\udcff\\ud800"]


PLAIN = ["n:(a,1)", "n:it's", "n:$(id)`id`"]
UNPRINTABLE = [f"n:'\\{HOSTILE}1", "n:\udcff1"]  # they take $'...', which dash does not know


@each(("shell", "key"), [*(("sh", key) for key in PLAIN), *(("bash", key) for key in UNPRINTABLE)])
def test_a_shell_takes_a_quoted_key_for_what_it_is(shell, key):
    told = subprocess.run([shell, "-c", f"printf %s {terminal.quoted(key)}"], capture_output=True).stdout
    assert told == os.fsencode(key) if "\udcff" in key else told.decode() == key


def test_nobody_writes_past_the_filter():
    root = Path(onceward.__file__).parent
    for path in (*(root / "cli").glob("*.py"), *(root / "pipe").glob("*.py")):
        if path.name in {"screen.py", "watchdog.py", "demo_worker.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func).rpartition(".")[2] != "Console", f"{where}: a console of its own"
            if isinstance(node, ast.Attribute):
                assert not ast.unparse(node).endswith((".buffer", "__stdout__", "__stderr__")), where


@each(
    "arguments",
    [
        ["ls"],
        ["ls", "--json"],
        ["show", f"n:{HOSTILE}"],
        ["show", f"no:{HOSTILE}"],
        ["clear", f"n:{HOSTILE}"],
        ["park", f"m:{HOSTILE}", "--reason", HOSTILE],
        ["ls", f"--{HOSTILE}"],
        ["doctor", "--queue", HOSTILE],
    ],
)
def test_hostile_text_is_only_text(hostile, arguments):
    result = hostile.run(*arguments)
    told = result.stdout.decode() + result.stderr
    assert is_harmless(told)
    assert not any(line.startswith("onceward: all is well") for line in told.split("\n"))


def test_pipe_shows_what_commands_and_functions_say_as_text(cli):
    cli.write("in.ndjson", {"id": "1", "text": HOSTILE}, {"id": HOSTILE, "text": HOSTILE}, f"no{CLIPBOARD}")
    says = cli.script("says", 'printf "%s" "$1"; printf "%s" "$1" >&2; test "$2" = 1')
    (cli.folder / "shop.py").write_text(
        "def work(line):\n    print(line['text'])\n    raise ValueError(line['text'])\n"
    )
    run = ("pipe", "in.ndjson", "--key", "line.id")
    commands, functions = (*run, "--", says, "{line.text}", "{line.id}"), (*run, "--name", "f", "--call", "shop:work")
    plain = cli.run(*commands)
    assert is_harmless(plain.stderr)
    assert plain.stdout.decode() == HOSTILE, "a pipe is given every byte"
    assert is_harmless(cli.run(*functions).stderr)
    told = on_a_terminal(cli, *commands)
    assert [escape for escape in ("\x1b]", "\x1b[2J", "\x9b", "\u202e") if escape.encode() in told] == []


def test_the_log_of_sqs_is_text_and_no_line_of_it_is_forged(capfd):
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    Heard(WorkReport(as_json=False)).emit(
        logging.LogRecord("onceward", logging.ERROR, "", 0, "%s: failed", (HOSTILE,), info)
    )
    err = capfd.readouterr().err
    assert is_harmless(err)
    assert "ValueError" in err
    assert not any(line.startswith("onceward:") for line in err.splitlines())


def test_the_log_of_a_malformed_record_says_where_and_carries_no_payload(caplog):
    class Order(pydantic.BaseModel):
        card: int

    for key, annotation, body in (
        ("order.card", Order, json.dumps({"card": f"{CARD} x"})),
        (lambda payload: payload[CARD], dict, json.dumps({"card": CARD})),
        (lambda payload: int(payload["card"]), dict, json.dumps({"card": f"{CARD} x"})),
        ("to_number(order.card)", dict, json.dumps({"card": [CARD]})),
        ("order.card", dict, f"{CARD}{{"),
    ):

        def handler(order):
            raise AssertionError

        handler.__annotations__ = {"order": annotation}
        event = {"Records": [{"eventSource": "aws:sqs", "messageId": "m-1", "body": body}]}
        answer = on_sqs(Once("memory:"), key=key, name="shop")(handler)(event, None)
        assert answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
    assert caplog.text.count("the record m-1 of aws:sqs: malformed:") == 5
    assert CARD not in caplog.text
