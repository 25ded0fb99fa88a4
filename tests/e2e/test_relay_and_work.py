"""``onceward relay`` and ``onceward work``: what they print, their exit statuses, and runs that are stopped."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest

from commands.command_line import Cli
from fixtures import closing_fixture
from queues.shops import NatsShop, RabbitShop, RedisShop
from servers.needs import free_port
from servers.redis import Redis
from waiting import PATIENCE, until
from web.http_servers import Handler, HttpServer

MODULE = '''
import os, time
import onceward
from onceward import Once
from onceward.outbox import MessageRefused, register, sender

REVERSE = (lambda data: data[::-1],) * 2


class File:
    """Appends each message to a file. Its body tells what else it does."""

    batch = 1

    def __init__(self, address):
        self.path = address.partition(":")[2]

    def check(self, message):
        pass

    def send(self, messages):
        answers = []
        for message in messages:
            if message.body == "never":
                answers.append(MessageRefused("it is too old"))
            else:
                with open(self.path, "a") as file:
                    file.write(message.body + " " + message.key + "\\n")
                answers.append(None)
            if os.path.exists(self.path + ".hang"):
                time.sleep(float(open(self.path + ".hang").read()))
        return answers

    def close(self):
        pass


register("file", File)


def crash(url, path, key, *bodies, seal=None):
    """Complete a key whose messages nobody sends, due at once."""
    sender.send_soon = lambda *told: True
    once = Once(url, name="n", seal=seal)
    def handle():
        for body in bodies:
            onceward.current().send("file:" + path, body)
    once.run(key, handle)
    once.close()
'''


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    (tmp_path / "filing.py").write_text(MODULE)
    (tmp_path / "shop.py").write_text(CODE)
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sent"


def crash(cli, path, key, *bodies, seal="None"):
    url = f"sqlite:///{cli.folder}/onceward.db"
    code = f"import filing; filing.crash({url!r}, {str(path)!r}, {key!r}, *{bodies!r}, seal={seal})"
    subprocess.run([sys.executable, "-c", code], cwd=cli.folder, env=cli.env, check=True)
    lapse(cli)


def lapse(cli, seconds=1000):
    """Let the send leases of crashed processes end earlier."""
    with contextlib.closing(sqlite3.connect(cli.folder / "onceward.db")) as connection:
        connection.execute("UPDATE onceward SET due_at = due_at - ? WHERE due_at < 1e10", (seconds,))
        connection.commit()


def sent(path):
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


ONCE = ("relay", "--once", "--import", "filing")


def test_once_sends_what_is_due_and_ends(cli, path):
    crash(cli, path, "a", "one", "two")
    crash(cli, path, "b", "secret", seal="filing.REVERSE")
    assert json.loads(cli.run("stats", "--json").stdout)["unsent"] == 2
    told = cli.run("relay", "--once")
    assert (told.returncode, "names no target: its scheme must be one of" in told.stderr) == (1, True)
    lapse(cli)
    told = cli.run(*ONCE, "--json")
    assert (told.returncode, sent(path)) == (1, ["one", "two"]), told.stderr
    assert b"they are sealed, and this relay has no seal" in told.stdout
    *events, summary = map(json.loads, told.stdout.splitlines())
    event = {"outcome": "sent", "key": "n:a", "messages": 2, "target": None, "error": None}
    assert (event in events, summary["summary"]["sent"]) == (True, 2)
    assert summary["summary"]["ended"] == "messages that are due are left"
    assert cli.run(*ONCE, "--seal", "filing:REVERSE").returncode == 0
    assert "onceward: nothing sent in" in cli.run(*ONCE).stderr
    assert sent(path) == ["one", "two", "secret"]


def test_once_goes_on_as_long_as_a_slow_target_takes_messages(cli, path):
    crash(cli, path, "a", *"1234")
    (path.parent / "sent.hang").write_text("1.1")
    assert cli.run(*ONCE).returncode == 0
    assert sent(path) == list("1234")


def test_what_a_target_refuses_is_shown_put_back_and_dropped(cli, path):
    crash(cli, path, "a", "never", "two")
    told = cli.run(*ONCE)
    assert (told.returncode, sent(path)) == (1, ["two"])
    assert json.loads(cli.run("stats", "--json").stdout)["refused"] == 1
    shown = cli.run("show", "n:a").stdout.decode()
    assert f"to file:{path}: refused: MessageRefused: it is too old" in shown
    assert "`onceward relay --retry n:a` sends them again" in shown
    assert b"n:a" in cli.run("ls", "--status", "refused").stdout
    assert "--lose-messages` loses them" in cli.run("clear", "n:a", "--yes").stderr
    assert b"is sent again" in cli.run("relay", "--retry", "n:a").stdout
    assert cli.run(*ONCE).returncode == 1
    assert b"is forgotten" in cli.run("relay", "--drop", "n:a").stdout
    assert cli.run(*ONCE).returncode == 0
    assert "it has no unsent messages" in cli.run("relay", "--drop", "n:a").stderr
    assert sent(path) == ["two"]


def test_a_run_that_cannot_send_all_does_not_end_as_if_it_had(cli):
    class Refuses(Handler):
        def do_POST(self):
            self.answer(400)

    cli.write("orders.ndjson", {"id": 1})
    server = HttpServer(Refuses)
    sinks = [{"http": {"url": f"{url}/"}} for url in (server.url, f"http://127.0.0.1:{free_port()}")]
    pipeline = {"name": "p", "ledger": "sqlite:///onceward.db", "sinks": sinks, "guard": {"key": "message.id"}}
    cli.write("p.yaml", {**pipeline, "source": {"ndjson": {"files": ["orders.ndjson"]}}})
    told = cli.run("run", "p.yaml")
    server.stop()
    assert told.returncode == 1
    assert "the messages of 1 record(s) are not sent yet: onceward relay sends them" in told.stderr
    assert "targets have refused 1 message(s) for good" in told.stderr


@pytest.mark.slow
def test_a_relay_ends_cleanly_when_told_to(cli, path):
    crash(cli, path, "a", "one")
    relay = cli.start("relay", "--import", "filing", "--every", "1s", "--json")
    until(lambda: sent(path))
    relay.terminate()
    out, _ = relay.communicate(timeout=60)
    assert (relay.returncode, sent(path)) == (0, ["one"])
    assert json.loads(out.splitlines()[-1])["summary"]["ended"] == "stopped"


CODE = """
def charge(order: dict) -> int:
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    return order["id"]
"""
ARGUMENTS = ("--call", "shop:charge", "--key", "order.id", "--name", "shop", "--store", "sqlite:///l.db")


# A server that keeps its streams.
redis_kept = closing_fixture(lambda: Redis(appendonly="yes"), scope="module")


def kafka_shop(need):
    kafka, topic = need("kafka"), need("topic")

    def publish(*orders):
        kafka.send(topic, *[order if isinstance(order, bytes) else json.dumps(order).encode() for order in orders])

    return SimpleNamespace(broker="kafka", orders=topic, publish=publish, url=kafka.servers)


SHOPS = {
    "nats": lambda need: NatsShop(need("nats")),
    "redis": lambda need: RedisShop(need("redis_kept")),
    "rabbitmq": lambda need: RabbitShop(need("rabbitmq")),
    "kafka": kafka_shop,
}


def work(shop, *options):
    place = "servers" if shop.broker == "kafka" else "url"
    return ("work", f"{shop.broker}:{shop.orders}", *ARGUMENTS, "--set", f"{place}={shop.url}", *options)


@pytest.mark.parametrize("kind", SHOPS)
def test_a_run_to_the_end_of_a_queue_tells_of_each_message(cli, kind, request):
    shop = SHOPS[kind](request.getfixturevalue)
    shop.publish({"id": 1}, {"id": 2}, {"id": 1}, b"torn")
    told = cli.run(*work(shop, "--until-empty", "--json"), timeout=PATIENCE)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    outcomes = sorted(line["outcome"] for line in lines if "outcome" in line)
    assert outcomes == ["done", "done", "malformed", "replayed"], told
    assert [line["summary"]["done"] for line in lines if "summary" in line] == [2]
    assert told.returncode == 3
    assert sorted(cli.log("charged")) == ["1", "2"]
    if kind != "kafka":
        assert shop.letter().headers["onceward-status"] == "malformed"


def test_a_queue_that_loses_messages_ends_the_command(cli, redis):
    told = cli.run(*work(RedisShop(redis)), timeout=PATIENCE)
    assert (told.returncode, "loses" in told.stderr) == (4, True)


def test_a_signal_ends_it_and_commits_what_is_done(cli, kafka, topic, request):
    shop = kafka_shop(request.getfixturevalue)
    shop.publish({"id": 1})
    running = cli.start(*work(shop, "--set", "group=till"))
    until(lambda: cli.log("charged") == ["1"])
    running.terminate()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert kafka.committed("till", topic) == {0: 1}
