"""A wrong input ends a command with one line that says what is wrong and what to do: no traceback, and no success."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

from onceward import Once
from onceward.cli import work
from onceward.cli.app import command_line
from onceward.consumers.keeping import Place, keeping
from onceward.consumers.worker import library_settings
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.nats.broker import NatsBroker
from tables import each

NOBODY = "127.0.0.1:9"  # a port at which nothing listens


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("ONCEWARD_STORE", raising=False)
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    (tmp_path / "lines.ndjson").write_text('{"id": 1}\n')
    (tmp_path / "wrong_syntax.py").write_text("def charge(:\n")
    (tmp_path / "wrong_import.py").write_text("\nimport no_such_module\n")
    (tmp_path / "wrong_exit.py").write_text("import sys\nsys.exit(0)\n")
    assert invoke("init", "--store", "sqlite:///ledger.db").exit_code == 0
    yield invoke
    for name in ("wrong_syntax", "wrong_import", "wrong_exit"):
        sys.modules.pop(name, None)


def invoke(*arguments):
    return CliRunner().invoke(command_line(), arguments)


def refused(result, *texts):
    assert result.exit_code not in {0, None}, result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)  # and not what a traceback is printed of
    for text in texts:
        assert text in result.output


@pytest.mark.slow
@each(
    ("module", "arguments", "extra"),
    [
        ("psycopg", ["ls", "--store", "postgresql://u@h/x"], "postgres"),
        ("redis", ["ls", "--store", "redis://h/0"], "redis"),
        ("uvicorn", ["serve"], "cli,service"),
    ],
)
def test_what_needs_a_missing_extra_names_it(run, monkeypatch, module, arguments, extra):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"onceward.stores.{extra}", raising=False)
    refused(run(*arguments), f"pip install 'onceward[{extra}]'")


@each("url", [f"mysql://u@{NOBODY}/x", f"redis://{NOBODY}/0", f"postgresql://u@{NOBODY}/x"])
def test_a_server_that_does_not_answer_is_asked_about(run, url):
    refused(run("ls", "--store", url), "refused", "s the server running")


@each("result", ["1e999", '{"a": 1, "a": 2}', "NaN", "{"])
def test_a_result_that_readers_of_json_do_not_agree_about_is_refused(run, result):
    refused(run("settle", "k", "--result", result), "not JSON")


def test_an_empty_file_is_no_ledger_and_stays_empty(run, tmp_path):
    (tmp_path / "empty").touch()
    refused(run("ls", "--store", "sqlite:///empty"), "there is no ledger at")
    assert (tmp_path / "empty").read_bytes() == b""
    result = run("doctor", "--store", "sqlite:///typo.db")
    assert (result.exit_code, "ok 1" in result.output) == (2, False)
    assert "there is no ledger at" in result.output


def test_doctor_does_not_pass_a_ledger_that_cannot_be_read(run):
    with closing(sqlite3.connect("ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE onceward_meta SET value = '2' WHERE name = 'version'")
    for path, says in (("ledger.db", "version"), ("bytes", "not a database"), (".", "unable to open")):
        result = run("doctor", "--store", f"sqlite:///{path}")
        assert (result.exit_code, says in result.output) == (2, True), result.output


def test_the_file_of_another_program_is_no_ledger_and_stays_as_it_is(run):
    with closing(sqlite3.connect("app.db")) as app, app:
        app.execute("CREATE TABLE customers (name)")
        for command in ("ls", "stats", "doctor"):
            assert "there is no ledger at" in run(command, "--store", "sqlite:///app.db").output
        assert app.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]


@each(
    ("function", "text"),
    [
        ("wrong_syntax:charge", "(wrong_syntax.py:1)"),
        ("wrong_import:charge", "No module named 'no_such_module' (wrong_import.py:2)"),
        ("wrong_exit:charge", "wrong_exit:charge: the module cannot be imported: SystemExit: 0 (wrong_exit.py:2)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_the_users_line(run, function, text):
    refused(run("pipe", "lines.ndjson", "--key", "line.id", "--call", function), "cannot be imported", text)


@pytest.mark.slow
@each(
    ("arguments", "text"),
    [
        (["serve", "--tokens", "nowhere"], "--tokens: [Errno 2] No such file or directory: 'nowhere'"),
        (["serve", "--tokens", "bytes"], "bytes:1: write a name, namespaces, actions and a hash"),
        (["token", "shop", "--tokens", "/nowhere/t", "--namespace", "x"], "--tokens /nowhere/t: No such file"),
        (["token", "", "--tokens", "t", "--namespace", "x"], "'' cannot name a token"),
        (["token", "a", "--tokens", "t", "--namespace", "x,*"], "'x,*': a comma in the file of tokens begins another"),
        (["reconcile", "--against", "bytes.csv", "--store", "sqlite:///ledger.db"], "bytes.csv: line "),
        (["reconcile", "--against", "-", "--derived", "", "--newer-than", "1h"], "--newer-than: an effect"),
        (["dashboard", "--store", "sqlite:///ledger.db", "--token-file", "bytes"], "--token-file bytes: 'utf-8' codec"),
        (["redrive", "amqp:orders", "--completed", "drop", "--store", "sqlite:///ledger.db"], "Pass --yes if"),
        (["work", "kafka:t", "--call", "json:dumps", "--set", f"servers={NOBODY}"], "Unable to bootstrap from"),
        (["work", "rabbitmq:q", "--call", "json:dumps", "--set", f"url=amqp://{NOBODY}/"], "is AMQP_URL right?"),
        (["work", "redis:s", "--call", "json:dumps", "--set", f"url=redis://{NOBODY}/0"], "is REDIS_URL right?"),
        (["work", "orders", "--call", "json:dumps"], "as in sqs:orders, kafka:orders"),
        (["work", "kafka:t", "--call", "json:dumps", "--set", "url=x"], "--set: Object contains unknown field `url`"),
        (["work", "nats:s", "--call", "json:dumps", "--set", "settings=x"], "- at `$.settings`"),
        (["work", "redis:s", "--call", "json:dumps", "--set", "idle"], "give NAME=VALUE"),
        (["doctor", "--store", "sqlite:///ledger.db", "--watch", "0s"], "--watch 0s: give a positive duration"),
        (["doctor", "--store", "sqlite:///ledger.db", "--watch", "99999999999d"], "give 0 s to 100 years"),
        (["dashboard", "--store", "sqlite:///ledger.db", "--allow-host", "https://x"], "give the name of a host"),
        (["init", "--timeout", "60"], "--timeout, --queue and --alarms are for --function"),
        (["relay", "--once", "--retry", "k"], "give one of --once, --retry and --drop"),
        (["vet", "p.yaml", "--schema"], "give the file of a pipeline, or --schema"),
    ],
)
def test_a_wrong_input_is_told_in_one_line(run, capfd, arguments, text):
    result = run(*arguments)
    refused(result)
    assert text in result.output + capfd.readouterr().err


def test_unpark_without_a_seal_imports_nothing_of_the_working_directory(run):
    once = Once("sqlite:///ledger.db", name="n")
    once.acquire("k").park("ValueError")
    drive(keeping(once.store, Place("n:k"), '{"message": 1}'), once.store)
    once.close()
    before = [*sys.path]
    refused(run("unpark", "n:k", "--to", "a b", "--store", "sqlite:///ledger.db"), "a b")
    assert sys.path == before


@pytest.fixture
def blocked(tmp_path):
    """Return the environment of a process in which typer or rich cannot be imported."""

    def environment(*missing):
        (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n")
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    return environment


@pytest.mark.slow
@each(
    ("missing", "command"),
    [(("typer",), ["-m", "onceward", "--version"]), (("rich",), ["-c", "from onceward.cli import main; main()"])],
)
def test_the_command_without_typer_and_rich_says_what_to_install(blocked, command, missing):
    result = subprocess.run([sys.executable, *command], env=blocked(*missing), capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "onceward: the command line needs typer and rich: pip install 'onceward[cli]'\n"


def test_the_library_works_without_typer_and_rich(blocked):
    code = "from onceward import Once, aws, batch, http, web; assert Once('memory:', name='n').run('k', len, 'a') == 1"
    subprocess.run([sys.executable, "-c", code], env=blocked("typer", "rich"), check=True)


def test_a_password_of_digits_stays_text_and_a_number_becomes_one():
    def connect(password=None, connect_timeout=2, tls_handshake_first=False, rebalance_timeout_ms=None): ...

    told = {"password": "0123", "connect_timeout": "5", "tls_handshake_first": "true", "rebalance_timeout_ms": "900"}
    source = work._source("nats:orders", [f"settings.{name}={value}" for name, value in told.items()])
    numbers = {"connect_timeout": 5, "tls_handshake_first": True, "rebalance_timeout_ms": 900}
    assert library_settings(source.settings, connect, "connect") == {"password": "0123", **numbers}


def test_credentials_without_their_library_are_refused_with_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)  # as if it were not installed
    settings = {"user_credentials": "shop.creds"}
    broker = NatsBroker("nats://127.0.0.1:1", "orders", stream=None, dead="dead", settings=settings)
    with pytest.raises(ValueError, match=r"nats-py\[nkeys\]"):
        asyncio.run(broker.open(Policy()))


def test_a_proxys_route_with_a_method_that_http_has_not_is_refused(run):
    result = run("proxy", "--upstream", "http://a", "--name", "n", "--scope", "everybody", "--route", "POSTT /x")
    refused(result, "POSTT is no method of HTTP")
