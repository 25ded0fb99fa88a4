"""``onceward pipe`` interrupted, killed, and run beside itself: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from commands.command_line import Cli
from waiting import until


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("in.ndjson", *({"id": n} for n in range(40)))
    return made


def slow(cli, seconds):
    return cli.script("slow", f'sleep {seconds}; echo "$1" >> log; echo "did $1"')


EVERY = [str(n) for n in range(40)]


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def test_after_kill_9_the_same_command_does_only_what_is_left(cli):
    run = ("pipe", "in.ndjson", "--key", "line.id", "--jobs", "3", "--lease", "1", "--", slow(cli, 0.1), "{line.id}")
    kills = 0
    for _ in range(3):
        process = cli.start(*run, stdout=subprocess.DEVNULL)
        before = len(cli.log())
        until(lambda before=before: len(cli.log()) >= before + 4)
        process.kill()
        process.communicate()
        kills += 1
    result = cli.run(*run)
    assert result.returncode == 0
    assert sorted(set(result.stdout.split(b"\n"))) == sorted({b"", *(f"did {n}".encode() for n in EVERY)})
    times = Counter(cli.log())
    assert sorted(times) == sorted(EVERY)
    # Only what was between its last act and its record at the moment of a kill may have run twice.
    assert sum(times.values()) <= len(EVERY) + 3 * kills


def test_kill_9_takes_the_running_commands_along(cli):
    mark = cli.script("mark", 'echo "$$" >> pids; sleep 300; echo "$1" >> log')
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--jobs", "2", "--", mark, "{line.id}")
    pids = until(lambda: len(found := cli.log("pids")) == 2 and found)
    process.kill()
    process.communicate()
    until(lambda: not any(is_alive(int(pid)) for pid in pids))
    assert cli.log() == []


KILLED = """
import os, signal, sys, threading
from onceward.cli.app import run

at, files = int(sys.argv.pop(1)), ("commands.py", "watched.py", "watchdog.py")

def trace(frame, event, _):
    global at
    if not frame.f_code.co_filename.endswith(files) or frame.f_code.co_name[0] == "<":
        return None
    if event == "line":
        at -= 1
        if not at:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

threading.settrace(trace)  # the threads that run commands
run()
"""


@pytest.mark.nightly
def test_no_line_of_onceward_can_be_killed_so_that_a_command_goes_on(cli):
    mark = cli.script("mark", 'echo "$$" >> pids; sleep 300; echo "$1" >> log')
    for line in (*range(26, 38, 2), 1000):  # the command is started within these, and 1000 is never reached
        run = [sys.executable, "-c", KILLED, str(line), "pipe", "in.ndjson", "--key", "line.id", "--name", f"n{line}"]
        process = subprocess.Popen([*run, "--", mark, "{line.id}"], cwd=cli.folder, env=cli.env, stderr=subprocess.PIPE)
        before = len(cli.log("pids"))
        until(lambda process=process, before=before: process.poll() is not None or len(cli.log("pids")) > before)
        process.kill()  # those that were killed in vain wait for their command
        assert process.communicate(timeout=60)[1] == b""
    time.sleep(0.3)  # for a command that was just begun to say so
    until(lambda: not any(is_alive(int(pid)) for pid in cli.log("pids")))
    assert cli.log("pids")
    assert cli.log() == []


@pytest.mark.nightly
def test_a_command_that_kills_onceward_at_once_does_not_outlive_it(cli):
    mark = cli.script("mark", 'echo "$$" >> pids; kill -9 "$(cat onceward)"; exec sleep 300')
    for turn in range(2):
        process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--jobs", "3", "--name", f"n{turn}", "--", mark)
        (cli.folder / "onceward").write_text(str(process.pid))
        process.communicate(timeout=60)
    time.sleep(0.3)
    assert len(cli.log("pids")) >= 2
    until(lambda: not any(is_alive(int(pid)) for pid in cli.log("pids")))


def test_a_killed_watchdog_ends_the_run_and_its_keys_stay_claimed(cli):
    hang = cli.script("hang", 'echo "$$ $PPID" >> pids; sleep 300')
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--", hang)
    pid, watchdog = until(lambda: cli.log("pids"))
    os.kill(int(watchdog), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"the process that starts the commands was killed" in err
    until(lambda: not is_alive(int(pid)))
    assert [r.status for r, _ in cli.once().ledger.records("pipe:")] == ["IN_PROGRESS"]


def test_a_command_starts_with_the_signals_and_files_of_any_program(cli):
    look = "grep -E '^Sig(Ign|Blk)' /proc/self/status; ls -l /proc/self/fd | grep -c socket; ps -o sid= -p $$; echo $$"
    result = cli.run("pipe", "--key", "line.id", "--", cli.script("look", look), input=b'{"id":1}\n')
    blocked, ignored, sockets, session, own = result.stdout.decode().replace("SigBlk:", "").splitlines()
    assert int(blocked, 16) == 0
    assert int(ignored.removeprefix("SigIgn:"), 16) & 0x7FFFFFFF == 0  # 32 and 33 are the C library's own
    assert sockets == "0"
    assert session.strip() == own


BLOCKED = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD}); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.nightly
def test_a_pipe_started_with_sigchld_blocked_still_sees_its_commands_end(cli):
    run = [sys.executable, "-c", BLOCKED, sys.executable, "-m", "onceward", "pipe", "--key", "line.id", "--"]
    look = ["grep", "SigBlk", "/proc/self/status"]
    process = subprocess.Popen(
        [*run, *look], cwd=cli.folder, env=cli.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        out, _ = process.communicate(b'{"id":1}\n', timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert int(out.split()[1], 16) == 1 << (signal.SIGCHLD - 1), "a command inherits what pipe was started with"


def test_a_key_whose_worker_is_gone_is_waited_for_and_taken_over(cli):
    cli.once().acquire(0, name="pipe", lease=10)
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--lease", "1", "--wait", "60", "--", "true")
    assert result.returncode == 0
    assert "ran 40, replayed 0" in result.stderr
    assert "s for 1 key(s) that another run holds, or held when it was killed" in result.stderr


def test_a_key_that_is_held_for_longer_is_busy(cli):
    claim = cli.once().acquire(0, name="pipe", lease=60)
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--wait", "0.5", "--", "true")
    assert result.returncode == 1
    assert "in.ndjson:1: pipe:0: busy: another worker (" in result.stderr
    assert "ran 39, replayed 0, failed 0, parked 0, busy 1" in result.stderr
    claim.release()


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_running_commands_finish(cli, number):
    waits = 'echo >> begun; while [ ! -e go ]; do sleep .05; done; echo "$1" >> log; echo "did $1"'
    run = ("--key", "line.id", "--", cli.script("waits", waits), "{line.id}")
    process = cli.start("pipe", "in.ndjson", "--jobs", "2", *run)
    until(lambda: (cli.folder / "begun").exists() and (cli.folder / "begun").read_text() == "\n\n")
    process.send_signal(number)
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


def deaf(*numbers):
    """Return what starts a process with signals ignored, as a shell does with `command &` and nohup."""
    names = " ".join(number.name.removeprefix("SIG") for number in numbers)
    return ["sh", "-c", f"trap '' {names}; exec \"$@\"", "sh"]


def test_a_signal_that_pipe_was_told_to_ignore_stays_ignored(cli):
    command = cli.script("slow", 'echo "$1" >> log; kill -INT $$; sleep .2; echo "$1" >> done')
    run = [
        *deaf(signal.SIGINT, signal.SIGHUP),
        sys.executable,
        "-m",
        "onceward",
        "pipe",
        "in.ndjson",
        "--key",
        "line.id",
    ]
    options = {"cwd": cli.folder, "env": cli.env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*run, "--", command, "{line.id}"], **options)
    for count in (1, 2, 3):
        until(lambda count=count: len(cli.log()) >= count)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)  # which it hears as ever
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert cli.log() == cli.log("done")
    assert b"interrupted" in err
    assert 3 <= len(cli.log()) < 40


def test_ctrl_c_on_a_terminal_does_not_hit_the_commands(cli):
    mark = cli.script("mark", 'trap "echo hit >> hits" INT; echo "$1" >> begun; sleep 1; echo "$1" >> log')
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--", mark, "{line.id}", start_new_session=True)
    until(lambda: cli.log("begun"))
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does to its foreground group
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert cli.log("hits") == []
    assert cli.log() == ["0"]


def test_the_second_signal_kills_commands_and_leaves_their_keys_claimed(cli):
    process = cli.start(
        "pipe", "in.ndjson", "--key", "line.id", "--jobs", "2", "--", cli.script("hang", "echo >> begun; sleep 300")
    )
    until(lambda: (cli.folder / "begun").exists() and (cli.folder / "begun").read_text() == "\n\n")
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # signals that come together are one
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)  # a fifth of the command's sleep
    assert process.returncode == 130
    assert b"ran 0" in err
    assert [r.status for r, _ in cli.once().ledger.records("pipe:")] == ["IN_PROGRESS", "IN_PROGRESS"]


def test_the_second_signal_does_not_wait_for_a_called_function(cli):
    (cli.folder / "handlers.py").write_text(
        "import time\ndef hang(line):\n    open('begun', 'w')\n    time.sleep(60)\n"
    )
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--call", "handlers:hang")
    until((cli.folder / "begun").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # signals that come together are one
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert cli.once().ledger.is_live("pipe:0")


def test_a_signal_ends_the_wait_for_more_input(cli):
    process = cli.start("pipe", "--key", "line.id", "--", "cat", stdin=subprocess.PIPE)
    process.stdin.write(b'{"id":1}\n{"id":')
    process.stdin.flush()
    assert process.stdout.readline() == b'{"id":1}\n'  # at once, though the stream goes on
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"ran 1, replayed 0, failed 0, parked 0, busy 0, malformed 0" in err


def test_a_signal_ends_the_wait_for_a_busy_key(cli):
    cli.once().acquire(0, name="pipe", lease=600)
    process = cli.start("pipe", "in.ndjson", "--key", "line.id", "--", slow(cli, 0), "{line.id}")
    until(lambda: len(cli.log()) == 39)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


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


# --- side by side -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_processes_on_one_ledger_share_the_work(cli):
    until_all = cli.script(
        "wait", 'echo $PPID >> begun; while test -e hold; do sleep .05; done; echo "$1" >> log; echo "$1"'
    )
    (cli.folder / "hold").touch()
    run = ("pipe", "in.ndjson", "--key", "line.id", "--", until_all, "{line.id}")
    processes = [cli.start(*run) for _ in range(4)]
    until(lambda: len(set(cli.log("begun"))) == 4)  # nobody only watches
    began = time.monotonic()
    (cli.folder / "hold").unlink()
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(cli.log()) == sorted(EVERY)
    assert all(len(out.splitlines()) == 40 for out, _ in results)
    shares = [int(err.split(b"ran ")[-1].split(b",")[0]) for _, err in results]
    assert sum(shares) == 40
    assert min(shares) >= 1
    assert time.monotonic() - began < 40, "some waited for leases, of a minute each"


def test_a_run_paused_past_its_lease_does_not_overwrite_its_successor(cli):
    mark = cli.script("mark", 'echo "$1" >> begun; while test -e "hold$1"; do sleep .05; done; echo "by $PPID"')
    (cli.folder / "hold0").touch()
    run = ("pipe", "--key", "line.id", "--lease", "1", "--", mark, "{line.id}")
    (cli.folder / "one").write_text('{"id":0}\n')
    with (cli.folder / "one").open() as stdin:
        paused = cli.start(*run, stdin=stdin)
    until(lambda: cli.log("begun"))
    paused.send_signal(signal.SIGSTOP)
    (cli.folder / "hold0").unlink()
    result = cli.run(*run, input=b'{"id":0}\n')
    paused.send_signal(signal.SIGCONT)
    out, err = paused.communicate(timeout=60)
    assert result.stdout.startswith(b"by ")
    assert paused.returncode == 1
    assert out == b""
    assert b"the claim was lost before it could record its result" in err
    assert cli.run(*run, input=b'{"id":0}\n').stdout == result.stdout


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it can also go between the two calls
        return False
