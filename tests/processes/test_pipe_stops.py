"""``onceward pipe`` and ``onceward run`` interrupted, killed, and run beside themselves: real processes, real signals."""

import os
import signal
import subprocess
import time
from collections import Counter

import httpx
import pytest

from commands.command_line import Cli
from faults.processes import is_alive
from servers.needs import free_port, listens
from waiting import until


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("in.ndjson", *({"id": n} for n in range(40)))
    return made


def slow(cli, seconds):
    return cli.script("slow", f'sleep {seconds}; echo "$1" >> log; echo "did $1"')


EVERY = [str(n) for n in range(40)]


def test_after_kill_9_the_same_command_does_only_what_is_left(cli):
    run = ("pipe", "in.ndjson", "--key", "line.id", "--jobs", "3", "--lease", "1", "--", slow(cli, 0.1), "{line.id}")
    for _ in range(3):
        process = cli.start(*run, stdout=subprocess.DEVNULL)
        before = len(cli.log())
        until(lambda before=before: len(cli.log()) >= before + 4)
        process.kill()
        process.communicate()
    result = cli.run(*run)
    assert result.returncode == 0
    assert sorted(set(result.stdout.split(b"\n"))) == sorted({b"", *(f"did {n}".encode() for n in EVERY)})
    times = Counter(cli.log())
    assert sorted(times) == sorted(EVERY)
    # Only what was between its last act and its record at the moment of a kill may have run twice.
    assert sum(times.values()) <= len(EVERY) + 3 * 3


def test_kill_9_takes_the_running_commands_along(cli):
    mark = cli.script("mark", 'echo "$$" >> pids; sleep 300; echo "$1" >> log')
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--jobs", "2", "--", mark, "{line.id}")
    pids = until(lambda: len(found := cli.log("pids")) == 2 and found)
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_alive, pids)))
    assert cli.log() == []


def test_a_killed_watchdog_ends_the_run_and_its_keys_stay_claimed(cli):
    hang = cli.script("hang", 'echo "$$ $PPID" >> pids; sleep 300')
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--", hang)
    pid, watchdog = until(lambda: cli.log("pids"))
    os.kill(int(watchdog), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"the process that starts the commands was killed" in err
    until(lambda: not is_alive(pid))
    assert [r.status for r, _ in cli.once().ledger.records("pipe:")] == ["IN_PROGRESS"]


def test_a_key_that_another_worker_holds_is_waited_for_or_busy(cli):
    cli.write("in.ndjson", {"id": 0}, {"id": 1})
    held = cli.once().acquire(0, name="pipe", lease=600, heartbeat=0)
    run, command = ("pipe", "in.ndjson", "--key", "line.id", "--lease", "1"), ("--", slow(cli, 0), "{line.id}")
    busy = cli.run(*run, "--wait", "0.5", *command)
    assert busy.returncode == 1
    assert "in.ndjson:1: pipe:0: busy: another worker (" in busy.stderr
    assert "ran 1, replayed 0, failed 0, parked 0, busy 1" in busy.stderr
    last = cli.start(*run, "--wait", "60", *command)
    until(lambda: b"s for keys that another run holds, or held when it was killed" in last.stderr.readline())
    held.release()
    _, err = last.communicate(timeout=60)
    assert last.returncode == 0
    assert b"ran 1, replayed 1" in err


def test_the_first_signal_lets_the_running_commands_finish(cli):
    waits = 'echo >> begun; while [ ! -e go ]; do sleep .05; done; echo "$1" >> log; echo "did $1"'
    run = ("--key", "line.id", "--", cli.script("waits", waits), "{line.id}")
    process = cli.start("pipe", "in.ndjson", "--jobs", "2", *run)
    until(lambda: (cli.folder / "begun").exists() and (cli.folder / "begun").read_text() == "\n\n")
    process.terminate()
    while b"stopping: waiting for running lines" not in process.stderr.readline():
        assert process.poll() is None
    cli.write("go", "")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(out.splitlines()) == len(cli.log()) == 2
    assert b"ran 2" in err
    assert b"interrupted; run the same command again to do the rest" in err
    result = cli.run("pipe", "in.ndjson", "--jobs", "20", *run)
    assert sorted(cli.log()) == sorted(EVERY)
    assert "ran 38, replayed 2" in result.stderr


@pytest.mark.parametrize("what", [["--", "./hang"], ["--call", "handlers:hang"]], ids=["command", "function"])
def test_the_second_signal_ends_what_runs_and_leaves_its_key_claimed(cli, what):
    cli.script("hang", "echo >> begun; sleep 300")
    cli.write("handlers.py", "import time\ndef hang(line):\n    print(file=open('begun', 'a'))\n    time.sleep(300)")
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--jobs", "2", *what)
    until(lambda: (cli.folder / "begun").exists() and (cli.folder / "begun").read_text() == "\n\n")
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # signals that come together are one
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)  # a fifth of the sleep
    assert process.returncode == 130
    assert b"ran 0" in err
    assert [r.status for r, _ in cli.once().ledger.records("pipe:")] == ["IN_PROGRESS", "IN_PROGRESS"]


def test_a_signal_ends_the_wait_for_more_input(cli):
    process = cli.start("pipe", "--key", "line.id", "--", "cat", stdin=subprocess.PIPE)
    process.stdin.write(b'{"id":1}\n{"id":')
    process.stdin.flush()
    assert process.stdout.readline() == b'{"id":1}\n'  # at once, though the stream goes on
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"ran 1, replayed 0, failed 0, parked 0, busy 0, malformed 0" in err


def test_a_reader_that_goes_away_ends_the_run(cli):
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--", slow(cli, 0.05), "{line.id}")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        err = process.stderr.read()
    assert process.wait(60) == 141
    assert b"nobody reads the output any more" in err
    assert b"Traceback" not in err
    done = cli.log()
    assert len(done) < 10
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", slow(cli, 0.05), "{line.id}")
    assert sorted(cli.log()) == sorted(EVERY)
    assert len(result.stdout.splitlines()) == 40  # what was lost on the way is printed now


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


def test_after_kill_9_a_run_does_only_what_is_left(cli):
    cli.write("orders.yaml", FILE.replace("LEASE", "5s"))
    cli.script("pay", 'sleep 0.05; echo "$1 $ONCEWARD_DERIVED_KEY" >> paid; echo "{\\"n\\": $1}"')
    cli.script("mail", 'echo "$1" >> mailed')
    for _ in range(3):
        process = cli.start("run", "orders.yaml", stdout=subprocess.DEVNULL)
        before = len(cli.lines("paid"))
        until(lambda before=before: len(cli.lines("paid")) >= before + 4)
        process.kill()
        process.communicate()
    result = cli.run("run", "orders.yaml", timeout=300)
    assert result.returncode == 0, result.stderr
    assert sorted(cli.lines("out.ndjson")) == sorted(f'{{"id":{n},"paid":{{"n":{n}}}}}' for n in range(40))
    assert {one.split()[0] for one in cli.lines("paid")} == {str(n) for n in range(40)}
    # Only an effect that was between its act and its record at a kill may be made again, and with the same derived key.
    assert len(set(cli.lines("paid"))) == 40
    assert len(cli.lines("paid")) <= 40 + 3 * 3
    assert len(cli.lines("mailed")) <= 40 + 3 * 3


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
    until(lambda: len(cli.lines("charged")) == 4)  # the others wait
    process.kill()
    process.wait(60)
    cli.write("go", "")
    process = cli.start("run", "hooks.yaml", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: set(cli.lines("charged")) == {f"o-{number}" for number in range(6)})
    once = cli.once()
    until(lambda: once.ledger.stats()["COMPLETED"] == 12)  # the inbox's records and the pipeline's
    once.close()
    process.terminate()
    assert process.wait(60) == 0
    assert len(cli.lines("charged")) == 6 + 4
