"""``onceward run``, killed in the middle: the next run does only what is left, and each effect and each line is there once."""

import signal
import subprocess

import httpx
import pytest

from commands.command_line import Cli
from servers.needs import free_port, listens
from waiting import until

FILE = """\
name: orders
ledger: sqlite:///onceward.db
source: {ndjson: {files: [in.ndjson]}}
guard: {key: message.id, lease: LEASE}
concurrency: 3
steps:
  - run: {command: [./pay, {value: message.id}], output: json}
    into: paid
  - guard:
      key: message.id
      lease: LEASE
      steps:
        - name: mail
          run: {command: [./mail, {value: message.id}]}
sinks:
  - file: {path: out.ndjson}
"""


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("in.ndjson", *({"id": n} for n in range(30)))
    made.script("pay", 'sleep 0.05; echo "$1 $ONCEWARD_DERIVED_KEY" >> paid; echo "{\\"n\\": $1}"')
    made.script("mail", 'echo "$1" >> mailed')
    made.write("orders.yaml", FILE.replace("LEASE", "60s"))  # on a slow machine, too, none lapses
    return made


def lines(cli, name):
    path = cli.folder / name
    return path.read_text().splitlines() if path.exists() else []


def test_after_kill_9_a_run_does_only_what_is_left(cli):
    cli.write("orders.yaml", FILE.replace("LEASE", "5s"))
    for _ in range(3):
        process = cli.start("run", "orders.yaml", stdout=subprocess.DEVNULL)
        before = len(lines(cli, "paid"))
        until(lambda before=before: len(lines(cli, "paid")) >= before + 4)
        process.kill()
        process.communicate()
    result = cli.run("run", "orders.yaml", timeout=300)
    assert result.returncode == 0, result.stderr
    assert sorted(lines(cli, "out.ndjson")) == sorted(f'{{"id":{n},"paid":{{"n":{n}}}}}' for n in range(30))
    assert {one.split()[0] for one in lines(cli, "paid")} == {str(n) for n in range(30)}
    # Only an effect that was between its act and its record at a kill may be made again, and with the same derived key.
    assert len(set(lines(cli, "paid"))) == 30
    assert len(lines(cli, "paid")) <= 30 + 3 * 3
    assert len(lines(cli, "mailed")) <= 30 + 3 * 3


def test_a_run_that_was_paused_past_its_lease_writes_nothing_twice(cli):
    cli.write("in.ndjson", *({"id": n} for n in range(6)))
    cli.write("orders.yaml", FILE.replace("LEASE", "2s"))
    cli.script(
        "pay", 'echo "$1 $ONCEWARD_DERIVED_KEY" >> paid; while [ ! -e go ]; do sleep 0.05; done; echo "{\\"n\\": $1}"'
    )
    paused = cli.start("run", "orders.yaml", stdout=subprocess.DEVNULL)
    until(lambda: len(lines(cli, "paid")) == 3)
    paused.send_signal(signal.SIGSTOP)
    cli.folder.joinpath("go").touch()
    assert cli.run("run", "orders.yaml", timeout=300).returncode == 0  # it takes over what the paused one holds
    done = sorted(f'{{"id":{n},"paid":{{"n":{n}}}}}' for n in range(6))
    assert sorted(lines(cli, "out.ndjson")) == done
    mailed = lines(cli, "mailed")
    paused.send_signal(signal.SIGCONT)
    paused.communicate(timeout=300)
    assert sorted(lines(cli, "out.ndjson")) == done
    assert lines(cli, "mailed") == mailed == sorted(set(mailed), key=mailed.index)
    assert (len(lines(cli, "paid")), len(set(lines(cli, "paid")))) == (9, 6)  # again with the same derived keys


HOOKS = """\
name: hooks
ledger: sqlite:///onceward.db
source: {webhook: {token: t0ken, port: PORT}}
guard: {key: message.id, lease: 3s}
concurrency: 4
backoff: {first: 0.2, longest: 2}
steps:
  - run: {command: [./charge, {value: message.id}]}
"""


def test_accepted_webhooks_survive_a_kill_and_are_not_delivered_again(cli):
    port = free_port()
    cli.write("hooks.yaml", HOOKS.replace("PORT", str(port)))
    cli.script("charge", 'echo "$1" >> charged; while [ ! -e go ]; do sleep 0.05; done')
    process = cli.start("run", "hooks.yaml", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert listens(port, process)
    for number in range(6):
        headers = {"Authorization": "Bearer t0ken", "Idempotency-Key": f"e-{number}"}
        sent = httpx.post(f"http://127.0.0.1:{port}/", json={"id": f"o-{number}"}, headers=headers, timeout=60)
        assert sent.status_code == 202
    until(lambda: len(lines(cli, "charged")) == 4)  # the others wait
    process.kill()
    process.wait(60)
    cli.write("go", "")
    process = cli.start("run", "hooks.yaml", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: set(lines(cli, "charged")) == {f"o-{number}" for number in range(6)})
    once = cli.once()
    until(lambda: once.ledger.stats()["COMPLETED"] == 12)  # the inbox's records and the pipeline's
    once.close()
    process.terminate()
    assert process.wait(60) == 0
    assert len(lines(cli, "charged")) == 6 + 4
