"""``onceward complete`` runs what has lapsed, ``onceward exec`` a command once, whatever kills whom; and what the others say of a kept input."""

import json
import signal
import subprocess
import sys
import time

import pytest

from commands.command_line import Cli
from faults.processes import is_alive
from onceward.core.record import COMPLETED
from tables import each
from waiting import until

SHOP = """
import os, signal, sys, time
from pathlib import Path

from onceward import Claim, Once

once = Once("sqlite:///onceward.db", lease=0.5)
options = {"key": "order.id", "keep_input": True}

def note(*words):
    with open("log", "a") as file:
        print(*words, file=file)

@once(**options)
def place(order: dict, claim: Claim):
    note("place", order["id"], claim.attempt)
    print("a handler may print")
    if order.get("slow"):
        time.sleep(order["slow"] if claim.attempt > 1 else 60)
    if order.get("fail") and claim.attempt > 1:
        raise ValueError("4242") if order["fail"] is True else SystemExit(0)
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("placed", order["id"])
    return order["id"]

@once(**options, name="shop.place")
async def ship(order: dict, claim: Claim):
    note("ship", order["id"], claim.attempt)
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@once(key="n")
def bare(n): ...

def plain(n): ...

if __name__ == "__main__":
    import asyncio, json
    from shop import place, ship
    function, order = {"place": place, "ship": ship}[sys.argv[1]], json.loads(sys.argv[2])
    made = function(order)
    if sys.argv[1] == "ship":
        asyncio.run(made)
"""


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return made


def crash(cli, function, **order):
    """Kill a process inside a handler, and let its lease end."""
    command = [sys.executable, "shop.py", function, json.dumps(order)]
    process = subprocess.Popen(command, cwd=cli.folder, env=cli.env, stdout=subprocess.DEVNULL)
    until(lambda: f"{function} {order['id']} 1" in cli.lines())
    if "slow" in order:
        process.kill()
    assert process.wait(60) == -signal.SIGKILL
    time.sleep(0.6)


def complete(cli, *options, call="shop:place"):
    return cli.run("complete", "--call", call, *options)


def test_a_look_runs_what_has_lapsed_and_ends(cli):
    crash(cli, "place", id=1)
    crash(cli, "ship", id=2)
    result = complete(cli, "--call", "shop:ship", "--once", "--json")
    assert result.returncode == 0, result.stderr
    told = {"completed": 2, "failed": 0, "parked": 0, "taken": 0, "left": 0}
    assert json.loads(result.stdout.splitlines()[-1]) == told
    assert cli.lines() == ["place 1 1", "ship 2 1", "place 1 2", "placed 1", "ship 2 2"]
    again = complete(cli, "--once")
    assert (again.returncode, again.stdout) == (0, b"")


def test_a_failure_is_counted_and_its_text_is_not_shown(cli):
    crash(cli, "place", id=1, fail=True)
    result = complete(cli, "--once")
    assert result.returncode == 1
    assert b"1 failed" in result.stdout
    assert "shop.place:1: run again, and it raised ValueError" in result.stderr
    assert "4242" not in result.stderr
    assert complete(cli, "--once").returncode == 0
    assert complete(cli, "--once", "--released", "0s").returncode == 1


def test_a_handler_that_calls_sys_exit_does_not_end_a_command_as_if_all_were_done(cli):
    crash(cli, "place", id=1, fail="exit")
    steps = "steps: [{call: {function: 'sys:exit', arguments: []}}]"
    cli.write("p.yaml", "name: p", "source: {ndjson: {files: ['-']}}", "guard: {}", steps)
    for result in (complete(cli, "--once"), cli.run("run", "p.yaml", input=b"{}\n")):
        assert (result.returncode, "ended by SystemExit(" in result.stderr) == (130, True), result.stderr


def test_the_first_signal_lets_the_handler_end_and_begins_no_other(cli):
    for n in (1, 2):
        crash(cli, "place", id=n, slow=1.0)
    process = cli.start("complete", "--call", "shop:place")
    until(lambda: "place 1 2" in cli.lines())
    process.terminate()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"1 completed" in out
    assert ["placed 1" in cli.lines(), "place 2 2" in cli.lines()] == [True, False]


@each(
    ("call", "status", "said"),
    [
        ("shop:plain", 2, "give a function that you decorate with @once(key=..., keep_input=True)"),
        ("shop:bare", 2, "its calls keep no arguments"),
        ("shop:nothing", 2, "shop has no nothing"),
        ("other:f", 2, "these functions are on several ledgers"),
        ("shop:ship", 4, "onceward: "),
    ],
)
def test_what_cannot_be_completed_is_refused(cli, call, status, said):
    f = "from onceward import Once\n@Once('sqlite:///other.db')(key='n', keep_input=True)\ndef f(n): ...\n"
    (cli.folder / "other.py").write_text(f)
    (cli.folder / "onceward.db").mkdir(exist_ok=True)
    result = complete(cli, "--call", "shop:place" if call == "other:f" else call, "--once", call=call)
    assert (result.returncode, said in result.stderr) == (status, True), result.stderr


def test_show_prints_the_input_and_what_runs_it(cli):
    crash(cli, "place", id=1)
    shown = cli.run("show", "shop.place:1").stdout.decode()
    assert 'input          {"function":"shop.place","arguments":{"order":{"id":1}}}' in shown
    assert "`onceward complete --call MODULE:FUNCTION` runs it with its kept input; or deliver it again" in shown
    cli.run("park", "shop.place:1")
    told = cli.run("unpark", "shop.place:1").stdout.decode()
    assert "its next delivery runs" in told


def test_a_sealed_input_is_not_shown(cli):
    def interrupted(n, card):
        raise KeyboardInterrupt

    once = cli.once(seal=(lambda text: text[::-1], bytes))
    with pytest.raises(KeyboardInterrupt):
        once(key="n", name="s", keep_input=True)(interrupted)(7, "4242")
    shown = cli.run("show", "s:7").stdout.decode()
    assert "input          (sealed)" in shown
    assert "2424" not in shown


KEY = ("exec", "--key", "job")


@pytest.fixture
def job(cli):
    """A command that notes each of its runs."""
    return lambda body="": cli.script("job.sh", f"echo run >> log\n{body}")


def test_a_second_call_gets_the_output_and_the_status(cli, job):
    command = (*KEY, "--", job('echo "$(cat) $ONCEWARD_KEY $ONCEWARD_ATTEMPT"; echo trouble >&2'))
    first, second = cli.run(*command, input=b"given\n"), cli.run(*command)
    told = (0, b"given exec:job 1\n", "trouble\n")
    assert [(one.returncode, one.stdout, one.stderr) for one in (first, second)] == [told] * 2
    assert cli.log() == ["run"]
    assert cli.run("exec", "--key", "job", "--new-only", "--", "./job.sh").stdout == b""
    assert cli.run("exec", "--key", "another", "--", "./job.sh").returncode == 0
    assert cli.log() == ["run"] * 2


def test_a_failure_is_tried_again_or_recorded(cli, job):
    command = job("echo told; exit 3")
    for options, runs in (((), 2), (("--on-failure", "record"), 3), (("--window", "365d"), 4)):
        for _ in range(2):
            result = cli.run("exec", "--key", f"job{runs}", *options, "--", command)
            assert (result.returncode, result.stdout) == (3, b"told\n")
        assert cli.log() == ["run"] * runs
    assert cli.run("exec", "--key", "last", "--max-attempts", 1, "--", command).returncode == 3
    parked = cli.run("exec", "--key", "last", "--max-attempts", 1, "--", command)
    assert (parked.returncode, "onceward unpark" in parked.stderr) == (76, True)


def test_bytes_come_back_as_they_were_and_the_last_of_many(cli, job):
    binary = job(r"printf '\377'; head -c 65535 /dev/zero")
    assert [cli.run(*KEY, "--", binary).stdout for _ in range(2)] == [b"\xff" + b"\0" * 65_535] * 2
    whole, kept = (cli.run("exec", "--key", "many", "--", "seq", 100_000).stdout for _ in range(2))
    assert len(whole.splitlines()) == 100_000
    note, _, rest = kept.partition(b"\n")
    assert note == f"[onceward: {len(whole) - 65_536} bytes were not recorded]".encode()
    assert (whole.endswith(rest), len(rest)) == (True, 65_536)


def test_another_that_runs_it_now_is_told_and_may_be_waited_for(cli, job):
    process = cli.start(*KEY, "--", job("while [ ! -e go ]; do sleep 0.05; done; echo done"))
    until(lambda: cli.log() == ["run"])
    assert cli.run(*KEY, "--", "./job.sh").returncode == 75
    assert cli.run(*KEY, "--new-only", "--", "./job.sh").returncode == 0
    crew = [process, *(cli.start(*KEY, "--wait", 60, "--", "./job.sh") for _ in range(2))]
    cli.write("go", "")
    assert [one.communicate(timeout=60)[0] for one in crew] == [b"done\n"] * 3
    assert cli.log() == ["run"]


def test_only_one_runs_at_a_time(cli, job):
    script = 'while [ ! -e go ]; do sleep 0.05; done; [ -z "$ONCEWARD_DERIVED_KEY" ] && exit 5'  # each run is new work
    command = ("exec", "--key", "job", "--while-running", "--", job(script))
    process = cli.start(*command)
    until(lambda: cli.log() == ["run"])
    assert cli.run(*command).returncode == 75
    cli.write("go", "")
    process.communicate(timeout=60)
    assert process.returncode == 5
    assert cli.run(*command).returncode == 5
    assert cli.log() == ["run"] * 2


def test_a_signal_reaches_the_command_which_may_still_succeed(cli, job):
    process = cli.start(*KEY, "--", job("trap 'echo bye; exit 0' TERM; echo up > up; while :; do sleep 0.05; done"))
    until(lambda: cli.log("up") == ["up"])
    process.terminate()
    assert process.communicate(timeout=60)[0] == b"bye\n"
    assert process.returncode == 0
    assert cli.run(*KEY, "--", "./job.sh").stdout == b"bye\n"


def test_a_command_that_a_signal_ends_keeps_its_key(cli, job):
    process = cli.start(*KEY, "--", job("trap '' TERM; echo up > up; while :; do sleep 0.05; done"))
    until(lambda: cli.log("up") == ["up"])
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        time.sleep(1.0)  # of signals that come together, Python hears the one with the least number first
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"nobody knows what it has done" in err
    assert cli.run(*KEY, "--", "./job.sh").returncode == 75


def test_ctrl_z_does_not_stop_what_renews_the_lease(cli, job):
    process = cli.start(*KEY, "--", job("echo up > up; while [ ! -e go ]; do sleep 0.05; done; echo done"))
    until(lambda: cli.log("up") == ["up"])
    process.send_signal(signal.SIGTSTP)
    cli.write("go", "")
    assert process.communicate(timeout=60)[0] == b"done\n"


def test_a_killed_onceward_takes_its_command_along(cli, job):
    process = cli.start(*KEY, "--lease", 2, "--", job("echo $$ > pid; sleep 600"))
    until(lambda: cli.log("pid"))
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not is_alive(cli.log("pid")[0]))
    again = cli.run(*KEY, "--lease", 2, "--wait", 60, "--", "sh", "-c", "echo $ONCEWARD_ATTEMPT")
    assert again.stdout == b"2\n"


def test_a_command_whose_key_is_lost_is_killed(cli, job):
    # Long enough that it is stopped before its first renewal: in the middle of one it would hold the file's lock.
    process = cli.start(*KEY, "--lease", 8, "--", job("echo up > up; exec sleep 600"))
    until(lambda: cli.log("up") == ["up"])
    process.send_signal(signal.SIGSTOP)
    other = cli.run(*KEY, "--lease", 60, "--wait", 60, "--", "echo", "other")
    assert other.stdout == b"other\n"
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 69
    assert b"the key was lost" in err
    assert cli.run(*KEY, "--", "true").stdout == b"other\n"


def test_a_reader_that_stands_still_does_not_hold_up_the_record(cli, job):
    process = cli.start(*KEY, "--lease", 5, "--", job("head -c 100000 /dev/zero"))
    until(lambda: any(record.status == COMPLETED for record, _ in cli.once().ledger.records()))
    assert process.poll() is None  # it still waits for its reader
    process.kill()
    process.communicate(timeout=60)
    again = cli.run(*KEY, "--lease", 5, "--wait", 60, "--", "./job.sh")
    assert (again.returncode, len(again.stdout.partition(b"\n")[2])) == (0, 65_536)
    assert cli.log() == ["run"]


@each(
    ("arguments", "says"),
    [
        (["--key", "k"], "no command"),
        (["--key", "", "--", "true"], "key"),
        (["--key", "k", "--while-running", "--window", "1h", "--", "true"], "--while-running records nothing"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(cli, arguments, says):
    result = cli.run("exec", *arguments)
    assert result.returncode == 2
    assert says in result.stderr
