"""``onceward pipe``: what runs, what is printed, and what the exit status says."""

import json
import os

import pytest

from commands.command_line import Cli
from tables import each


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("in.ndjson", {"id": 1, "n": "one"}, {"id": 2, "n": "two"}, {"id": 1, "n": "one, again"})
    return made


def objects(result):
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return found[:-1], found[-1]["summary"]


# --- once per key -----------------------------------------------------------------------------------------------------


def test_command_runs_once_per_key_and_duplicate_prints_what_was_recorded(cli):
    say = cli.script("say", 'echo "$1" >> log; echo "did $1"')
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", say, "{line.n}")
    assert result.stdout == b"did one\ndid two\ndid one\n"
    assert result.returncode == 0
    assert cli.log() == ["one", "two"]
    assert "ran 2, replayed 1, failed 0, parked 0, busy 0, malformed 0 in" in result.stderr


def test_the_same_command_again_runs_nothing_and_prints_the_same(cli):
    say = cli.script("say", 'echo "$1" >> log; echo "did $1"')
    first, second = (cli.run("pipe", "in.ndjson", "--key", "line.id", "--", say, "{line.n}") for _ in range(2))
    assert second.stdout == first.stdout
    assert cli.log() == ["one", "two"]
    assert "ran 0, replayed 3" in second.stderr


def test_duplicates_print_nothing_with_new_only(cli):
    assert cli.run("pipe", "in.ndjson", "--key", "line.id", "--new-only", "--", "echo", "{line.id}").stdout == b"1\n2\n"
    assert cli.run("pipe", "in.ndjson", "--key", "line.id", "--new-only", "--", "echo", "{line.id}").stdout == b""


def test_the_line_is_the_commands_standard_input_as_it_stands(cli):
    (cli.folder / "odd.ndjson").write_bytes(b'{ "id":  1.50, "n": "\\u00e9" }\r\n{"id":2}')
    result = cli.run("pipe", "odd.ndjson", "--key", "line.id", "--", "cat")
    assert result.stdout == b'{ "id":  1.50, "n": "\\u00e9" }\r\n{"id":2}\n'


def test_lines_come_from_standard_input_when_no_file_or_a_dash_is_given(cli):
    for files in ([], ["-"]):
        result = cli.run(
            "pipe", *files, "--key", "line.id", "--name", f"n{len(files)}", "--", "cat", input=b'{"id":7}\n'
        )
        assert result.stdout == b'{"id":7}\n'


def test_several_files_are_one_stream(cli):
    cli.write("more.ndjson", {"id": 2}, {"id": 3})
    found, _ = objects(cli.run("pipe", "in.ndjson", "more.ndjson", "--key", "line.id", "--json", "--", "true"))
    assert [(o["file"], o["line"], o["outcome"]) for o in found] == [
        ("in.ndjson", 1, "ran"),
        ("in.ndjson", 2, "ran"),
        ("in.ndjson", 3, "replayed"),
        ("more.ndjson", 1, "replayed"),
        ("more.ndjson", 2, "ran"),
    ]


def test_a_key_may_be_made_of_several_parts(cli):
    cli.write("shops.ndjson", {"shop": "a", "n": 1}, {"shop": "b", "n": 1}, {"shop": "a", "n": 1})
    result = cli.run("pipe", "shops.ndjson", "--key", "[line.shop, line.n]", "--", "echo", "{line.shop}{line.n}")
    assert result.stdout == b"a1\nb1\na1\n"


def test_1_and_the_text_1_are_different_keys(cli):
    cli.write("types.ndjson", {"id": 1}, {"id": "1"})
    assert "ran 2" in cli.run("pipe", "types.ndjson", "--key", "line.id", "--", "true").stderr


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "value", "argument"),
    [
        ("{line.v}", "text", "text"),
        ("a{line.v}b{line.v}c", "-", "a-b-c"),
        ("{line.v}", 1.5, "1.5"),
        ("{line.v}", True, "true"),
        ("{line.v}", {"a": [1, None]}, '{"a":[1,null]}'),
        ("{line.v.a[0]}", {"a": ["x"]}, "x"),
        ("{line.v || 'none'}", "", "none"),
        ("{join('}', line.v)}", ["x", "y"], "x}y"),
        ("{to_string({a: line.v})}", 1, '{"a":1}'),
        ('{{"v": "{line.v}"}}', "x", '{"v": "x"}'),
        ("{line.v}", "", ""),
    ],
)
def test_an_argument_is_filled_in_from_the_line(cli, template, value, argument):
    cli.write("one.ndjson", {"id": 1, "v": value})
    assert cli.run("pipe", "one.ndjson", "--key", "line.id", "--", "printf", "%s", template).stdout.decode() == argument


@pytest.mark.parametrize(
    "value", ["$(touch hacked)", "`touch hacked`", "; touch hacked", "a  b\n*", "'\"\\", "| cat", "é\t"]
)
def test_what_a_shell_would_interpret_is_only_text(cli, value):
    cli.write("one.ndjson", {"id": 1, "v": value})
    assert cli.run("pipe", "one.ndjson", "--key", "line.id", "--", "printf", "%s", "{line.v}").stdout.decode() == value
    assert not (cli.folder / "hacked").exists()


def test_the_command_finds_its_claim_in_its_environment(cli):
    show = cli.script(
        "show", 'echo "$ONCEWARD_KEY $ONCEWARD_ATTEMPT $ONCEWARD_DERIVED_KEY"; test "$ONCEWARD_ATTEMPT" = 2'
    )
    cli.run("pipe", "in.ndjson", "--key", "line.id", "--", show)
    first, second, again = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", show).stdout.decode().splitlines()
    assert first.startswith("pipe:1 2 ")
    assert second.startswith("pipe:2 2 ")
    assert first == again
    assert first.split()[2] != second.split()[2]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failed_line_is_reported_and_run_again_by_the_next_run(cli):
    fail = cli.script("fail", 'echo "$1" >> log; echo half; echo "no such card" >&2; exit 3')
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", fail, "{line.id}")
    assert result.returncode == 1
    assert result.stdout == b""
    assert "in.ndjson:2: pipe:2: failed: exit status 3\n" in result.stderr
    assert "no such card\n" in result.stderr
    assert cli.log() == ["1", "2", "1"]
    record, _ = cli.once().ledger.show("pipe:2")
    assert record.error == "CommandFailed: exit status 3: no such card"


def test_a_command_that_is_killed_has_failed(cli):
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "sh", "-c", "kill -SEGV $$")
    assert "pipe:1: failed: killed by SIGSEGV" in result.stderr


def test_a_key_is_parked_after_its_last_attempt_until_it_is_unparked(cli):
    fail = cli.script("fail", 'echo "$1" >> log; test -e mended')
    run = ("pipe", "in.ndjson", "--key", "line.id", "--max-attempts", "1", "--", fail, "{line.id}")
    first = cli.run(*run)
    assert "failed 2, parked 1" in first.stderr
    second = cli.run(*run)
    assert second.returncode == 1
    assert "failed 0, parked 3" in second.stderr
    assert cli.log() == ["1", "2"]
    (cli.folder / "mended").touch()
    for key in ("pipe:1", "pipe:2"):
        cli.run("unpark", key)
    assert "ran 2, replayed 1" in cli.run(*run).stderr


def test_what_a_command_says_on_standard_error_is_passed_on(cli):
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "sh", "-c", "echo careful >&2")
    assert result.stderr.count("careful\n") == 2


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_output_that_is_not_text_is_replayed_byte_for_byte(cli):
    first = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "printf", "\\377\\000{line.id}")
    assert first.stdout == b"\xff\x001\xff\x002\xff\x001"
    assert (
        cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "printf", "\\377\\000{line.id}").stdout == first.stdout
    )


def test_an_output_too_large_to_be_recorded_is_printed_whole_once(cli):
    large = cli.script("large", "head -c 3000000 /dev/zero | tr '\\0' x")
    first = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", large)
    assert first.stdout == b"x" * 6_000_000
    assert first.returncode == 0
    assert "ran 2, replayed 1" in first.stderr
    assert "2 output(s) were too large to be recorded" in first.stderr
    assert "1 duplicate(s) printed nothing" in first.stderr
    assert "Warning" not in first.stderr
    assert "3000000 bytes" in cli.once().ledger.show("pipe:1")[0].error


def test_outputs_of_parallel_jobs_never_interleave(cli):
    cli.write("many.ndjson", *({"id": n} for n in range(24)))
    slow = cli.script("slow", 'for i in 1 2 3; do printf "%0.s$1" $(seq 5000); done; echo')
    result = cli.run("pipe", "many.ndjson", "--key", "line.id", "--jobs", "6", "--", slow, "<{line.id}>")
    lines = result.stdout.decode().split()
    assert len(lines) == 24
    assert all(len(set(line.strip("<>").split("><"))) == 1 for line in lines)


def test_jobs_run_side_by_side(cli):
    cli.write("four.ndjson", *({"id": n} for n in range(4)))
    meet = cli.script(
        "meet", 'touch "here$1"; for i in $(seq 100); do ls here* | wc -l | grep -q 4 && exit; sleep .05; done; exit 1'
    )
    assert cli.run("pipe", "four.ndjson", "--key", "line.id", "--jobs", "4", "--", meet, "{line.id}").returncode == 0


def test_a_second_line_of_a_key_in_flight_waits_and_replays(cli):
    cli.write("twins.ndjson", *({"id": "same", "n": n} for n in range(6)))
    slow = cli.script("slow", 'sleep .3; echo "$1" >> log; echo "did $1"')
    result = cli.run("pipe", "twins.ndjson", "--key", "line.id", "--jobs", "6", "--wait", "0", "--", slow, "{line.n}")
    assert "ran 1, replayed 5" in result.stderr
    assert len(set(result.stdout.splitlines())) == 1
    assert len(cli.log()) == 1


# --- --json -----------------------------------------------------------------------------------------------------------


def test_json_has_one_object_per_line_and_a_summary(cli):
    cli.write("mixed.ndjson", {"id": 1}, "nonsense", {"id": 2}, "", {"id": 1})
    some = cli.script("some", 'test "$1" = 1 && echo "é{}" || { echo oops >&2; exit 9; }')
    result = cli.run("pipe", "mixed.ndjson", "--key", "line.id", "--json", "--", some, "{line.id}")
    found, summary = objects(result)
    by_line = {o["line"]: o for o in found}
    assert by_line[1] == {
        "file": "mixed.ndjson", "line": 1, "key": "pipe:1", "outcome": "ran", "output": "é{}\n", "error": None,
    }  # fmt: skip
    assert by_line[2]["outcome"] == "malformed"
    assert by_line[3]["error"] == "CommandFailed: exit status 9: oops"
    assert by_line[5]["outcome"] == "replayed"
    assert {name: summary[name] for name in ("ran", "replayed", "failed", "parked", "busy", "malformed")} == {
        "ran": 1, "replayed": 1, "failed": 1, "parked": 0, "busy": 0, "malformed": 1,
    }  # fmt: skip
    assert summary["seconds"] >= 0
    assert result.returncode == 1


def test_json_holds_binary_and_large_output(cli):
    both = cli.script("both", 'test "$1" = 1 && printf "\\377" || { head -c 400000 /dev/zero | tr "\\0" "\\""; }')
    found, _ = objects(cli.run("pipe", "in.ndjson", "--key", "line.id", "--json", "--", both, "{line.id}"))
    assert [o["output"] for o in found] == [{"hex": "ff"}, '"' * 400_000, {"hex": "ff"}]


# --- --call -----------------------------------------------------------------------------------------------------------

HANDLERS = """
import asyncio, dataclasses, datetime, sys
from onceward import Claim

@dataclasses.dataclass
class Receipt:
    id: int
    at: datetime.date

def receipt(line: dict) -> Receipt:
    open("log", "a").write(f"{line['id']} ")
    print("at work")
    return Receipt(line["id"], datetime.date(2026, 11, 21))

def text(line): return f"did {line['id']}"
def nothing(line): return None
def fails(line): raise ValueError("no such card")
def leaves(line): sys.exit(3)
def large(line) -> str: return "x" * 300_000
def claimed(line, claim: Claim): return claim.record.key
async def waits(line):
    await asyncio.sleep(0.01)
    return line["id"]
"""


def call(cli, function, *options):
    (cli.folder / "handlers.py").write_text(HANDLERS)
    return cli.run("pipe", "in.ndjson", "--key", "line.id", "--call", f"handlers:{function}", *options)


def test_function_runs_once_per_key_and_its_typed_result_replays_as_json(cli):
    for _ in range(2):
        result = call(cli, "receipt")
        assert result.stdout.splitlines() == [b'{"id":%d,"at":"2026-11-21"}' % n for n in (1, 2, 1)]
        assert result.returncode == 0
    assert cli.log() == ["1", "2"]


def test_what_a_function_prints_is_not_mixed_with_its_results(cli):
    result = call(cli, "receipt")
    assert b"at work" not in result.stdout
    assert "at work" in result.stderr


@pytest.mark.parametrize(
    ("function", "out"),
    [
        ("text", b"did 1\ndid 2\ndid 1\n"),
        ("nothing", b""),
        ("waits", b"1\n2\n1\n"),
        ("claimed", b"pipe:1\npipe:2\npipe:1\n"),
    ],
)
def test_results_are_printed(cli, function, out):
    assert call(cli, function).stdout == out
    assert call(cli, function).stdout == out


def test_an_exception_is_a_failed_line_with_the_place_it_came_from(cli):
    result = call(cli, "fails")
    assert result.returncode == 1
    assert "in.ndjson:1: pipe:1: failed: ValueError: no such card (handlers.py:17)" in result.stderr


def test_a_function_that_exits_is_a_failed_line(cli):
    assert "pipe:2: failed: SystemExit: 3" in call(cli, "leaves", "--wait", "0").stderr


def test_a_large_result_of_a_function_is_printed_whole_once(cli):
    result = call(cli, "large")
    assert result.stdout.split() == [b"x" * 300_000] * 2
    assert "1 duplicate(s) printed nothing" in result.stderr


def test_json_holds_a_functions_result_as_it_is(cli):
    found, _ = objects(call(cli, "receipt", "--json"))
    assert found[0]["output"] == {"id": 1, "at": "2026-11-21"}


# --- another command under the same name ------------------------------------------------------------------------------


def test_another_command_under_the_same_name_is_refused(cli):
    cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "echo", "first one")
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "echo", "second")
    assert result.returncode == 2
    assert result.stdout == b""
    assert "before: echo 'first one'" in result.stderr
    assert "now:    echo second" in result.stderr
    assert "--name" in result.stderr
    assert "onceward clear onceward.pipe:pipe" in result.stderr


def test_another_command_has_keys_of_its_own_under_another_name(cli):
    cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "echo", "first")
    assert "ran 2" in cli.run("pipe", "in.ndjson", "--key", "line.id", "--name", "other", "--", "echo", "second").stderr


def test_another_command_goes_on_under_the_same_keys_after_the_clear(cli):
    cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "echo", "first")
    assert cli.run("clear", "onceward.pipe:pipe", "--yes").returncode == 0
    assert "replayed 3" in cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "echo", "second").stderr


def test_a_function_and_a_command_are_two_commands(cli):
    call(cli, "text")
    assert "before: --call handlers:text" in cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "cat").stderr


# --- progress ---------------------------------------------------------------------------------------------------------


def test_plain_lines_tell_of_the_progress_where_there_is_no_terminal(cli):
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "sleep", "1.2")
    assert "onceward: 100% read, ran 1\n" in result.stderr or "onceward: 100% read, ran 2\n" in result.stderr


def test_a_bar_stays_below_the_output_on_a_terminal(cli):
    import pty

    controller, terminal = pty.openpty()
    process = cli.start(
        "pipe",
        "in.ndjson",
        "--key",
        "line.id",
        "--",
        "sh",
        "-c",
        "sleep .3; echo did",
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    told = b""
    try:
        while piece := os.read(controller, 65536):
            told += piece
    except OSError:
        pass  # the other side is closed
    os.close(controller)
    assert process.wait(60) == 0
    assert told.count(b"did\r\n") >= 3
    assert b"100%" in told
    assert b"ran 2, replayed 1, failed 0" in told


# --- data is never code -----------------------------------------------------------------------------------------------


@each(
    "command",
    [
        ["sh", "-c", "echo {line.n}"],
        ["/bin/sh", "-ec", "echo {line.n}"],
        ["bash", "-o", "pipefail", "-c", "echo '{line.n}'"],
        ["env", "A=1", "timeout", "9", "bash", "-lc", "echo {line.n}"],
        ["su", "nobody", "-c", "echo {line.n}"],
        ["python3", "-X", "dev", "-c", "print('{line.n}')"],
        ["python3", "-Xpycache_prefix=x", "-c", "print('{line.n}')"],
        ["perl", "-e", "print 1;", "-e", "print '{line.n}'"],
        ["node", "--eval={line.n}"],
        ["ssh", "host", "echo", "{line.n}"],
    ],
)
def test_a_line_is_not_filled_into_code(cli, command):
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", *command)
    assert result.returncode == 2
    assert f"is code for {command[0].rpartition('/')[2] if command[0] != 'env' else 'bash'}" in result.stderr
    assert "\"$1\"' sh '{line.id}'" in result.stderr
    assert not (cli.folder / "onceward.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", 'printf "%s" "$1"', "sh", "{line.n}"],
        ["sh", "-c", 'printf "%s" "$2"', "sh", "-c", "{line.n}"],
        ["sh", "./say", "-c", "{line.n}"],
        ["env", "N={line.n}", "sh", "-c", 'printf "%s" "$N"'],
        ["python3", "-c", "import sys; print(sys.argv[1], end='')", "{line.n}"],
    ],
    ids=" ".join,
)
def test_a_line_may_be_an_argument_of_code(cli, command):
    cli.write("one.ndjson", {"id": 1, "n": "$(touch hacked)'"})
    (cli.folder / "say").write_text('printf "%s" "$2"')
    result = cli.run("pipe", "one.ndjson", "--key", "line.id", "--", *command)
    assert result.stdout == b"$(touch hacked)'"
    assert not (cli.folder / "hacked").exists()
