"""Every mistake in a file is told with its line and column, before anything runs; no file of any kind breaks the check."""

import inspect
import json

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.command_line import Cli
from onceward.aws.sqs.broker import SqsWorker
from onceward.consumers.worker import Worker
from onceward.kafka.broker import KafkaWorker
from onceward.nats.broker import NatsWorker
from onceward.pipelines import PipelineInvalid, load
from onceward.pipelines.marks import parse
from onceward.pipelines.pipeline import examine
from onceward.pipelines.sources.brokers import KafkaSource, NatsSource, RabbitmqSource, RedisStreamsSource, SqsSource
from onceward.rabbitmq.broker import RabbitWorker
from onceward.redis_streams.broker import RedisStreamsWorker
from tables import each

GOOD = """\
name: orders
source: {ndjson: {files: [orders.ndjson]}}
guard:
  key: message.id
steps:
  - name: pay
    call:
      function: json:dumps
    into: paid
sinks:
  - stdout:
"""


@pytest.mark.slow
@each(
    ("was", "now", "line", "column", "text"),
    [
        ("name: orders\n", "", 1, 1, "missing required field `name`"),
        ("name: orders", "name: orders\nnmae: x", 2, 1, "unknown field `nmae`"),
        ("name: orders", "name: orders\nname: x", 2, 1, "here twice"),
        ("name: orders", "name: or.ders", 1, 1, "has no dot"),
        ("{ndjson: {files: [orders.ndjson]}}", "true", 2, 1, "a source is a mapping with its type"),
        ("    call:\n      function: json:dumps", "    send: {to: true}", 7, 12, "a sink is a mapping"),
        ("orders.ndjson", "none.ndjson", 2, 27, "no such file"),
        ("guard:\n  key: message.id\n", "", 2, 1, "the file needs a guard"),
        ("message.id", "messages.id", 4, 3, "key='message.messages.id'"),
        ("  key: message.id", "  key: message.id\n  lease: 3 weeks", 5, 3, "give seconds"),
        ("  key: message.id", "  key: message.id\n  lease: 0", 3, 1, "lease=0"),
        ("  key: message.id", "  key: message.id\n  lease: 1ms", 3, 1, "is too short for sqlite"),
        ("json:dumps", "nowhere:f", 8, 7, "cannot be imported"),
        ("json:dumps", "json:dumps\n      arguments: [message, message.x]", 8, 7, "does not take"),
        ("name: pay", "retry: {steps: [{run: {command: [ls]}, on_lapse: park}]}\n  - name: pay", 6, 44, "to it"),
        ("name: pay", "retry: {steps: [guard: {steps: [send: {to: {stdout: }}]}]}\n  - name: pay", 6, 56, "after it"),
        ("into: paid", "into: paid\n    on_error: dead_letter", 10, 5, "needs the address"),
        (
            "name: pay",
            "retry: {errors: ['('], steps: [{filter: {where: message}}]}\n  - name: pay",
            6,
            22,
            "regular expression",
        ),
        ("sinks:", "  - call: {function: json:dumps}\n    name: pay\nsinks:", 11, 5, "the name 'pay'"),
        ("- stdout:", "- stdout:\n    file: {path: x}", 12, 5, "two types"),
        ("name: orders", "name: ${NOT_SET_ANYWHERE}", 1, 7, "is not set"),
        ("name: orders", "name: [", 3, 1, "not YAML"),
        ("into: paid", "into: paid..by", 9, 5, "Expected `str` matching regex"),
        ("name: pay", "filter: {where: lenght(message.a)}\n  - name: pay", 6, 14, "Unknown function: lenght()"),
        ("- stdout:", '- file: {path: "a\\0b"}', 11, 12, "null byte"),
    ],
)
def test_a_mistake_has_its_line_and_column(pipelines, was, now, line, column, text):
    assert was in GOOD
    pipelines.file.write_text(GOOD.replace(was, now, 1))
    assert [(a, b) for a, b, told in pipelines.mistakes() if text in told] == [(line, column)], pipelines.mistakes()


def test_mistakes_of_several_steps_and_sinks_are_told_at_once(pipelines):
    text = GOOD.replace("json:dumps", "nowhere:f").replace("stdout", "stdoutt")
    pipelines.file.write_text(text.replace("sinks:", "  - filter: {where: x}\n  - [a]\n  - b\nsinks:"))
    assert [line for line, _, _ in pipelines.mistakes()] == [8, 10, 11, 12, 14]
    pipelines.file.write_text(text.replace("message.id", "wrong.id"))
    assert [line for line, _, _ in pipelines.mistakes()] == [4]


def test_an_effect_that_no_guard_protects_is_a_warning(pipelines):
    text = GOOD.replace("guard:\n  key: message.id\n", "")
    pipelines.file.write_text(text.replace("ndjson: {files: [orders.ndjson]}", "schedule: {every: 1d}"))
    ((line, column, told),) = pipelines.mistakes()
    assert (line, column) == (4, 5)
    assert told.startswith("WARNING 'pay' has an effect, but no guard")


def test_an_inner_guard_that_forgets_before_a_retry_is_a_warning(pipelines):
    guarded = "  - guard: {key: message.id, retention: 2m, steps: [{filter: {where: message.id}}]}\nsinks:"
    pipelines.file.write_text(GOOD.replace("sinks:", guarded))
    ((line, column, told),) = pipelines.mistakes()
    assert (line, column) == (10, 30)
    assert told.startswith("WARNING a message that fails after this guard can come again 900 s later")
    pipelines.file.write_text(GOOD.replace("sinks:", guarded) + "backoff: {longest: 1m}\n")
    assert pipelines.mistakes() == []


def test_a_guard_cannot_have_the_keys_of_the_inbox(pipelines):
    text = GOOD.replace("ndjson: {files: [orders.ndjson]}", "webhook: {token: t}")
    guarded = "  - guard: {name: webhook, key: message.id, steps: [{filter: {where: message.id}}]}\nsinks:"
    pipelines.file.write_text(text.replace("sinks:", guarded))
    assert [told for _, _, told in pipelines.mistakes() if "names the keys of the source" in told]


@pytest.mark.parametrize(
    "line",
    [
        "ledger: postgresql://u:${PW}#@h:port/db",
        "ledger: redis://h/0?a=${PW}&a=1",
        "dead_letters: rabbit://u:${PW}@h/q",
        "    when: Bearer ${PW}",
        "    on_error: ${PW}",
        '  - http: {url: "https://h:p/${PW}"}',
        "ledger: ${NONE:-s3cr3t}",
    ],
)
def test_a_mistake_tells_no_password(pipelines, monkeypatch, line):
    monkeypatch.setenv("PW", "s3/c?r@et")
    pipelines.file.write_text(f"{GOOD}{line}\n")
    ((_, _, told),) = pipelines.mistakes()
    assert not [part for part in ("s3", "c?r", "et@", "@et") if part in told]


def test_variables_fill_texts(monkeypatch):
    tree, mistakes = parse("a: x${ONE}y\nb: ${TWO:-else}\nc: ${TWO:-}", {"ONE": "1"})
    assert (tree.value, mistakes) == ({"a": "x1y", "b": "else", "c": ""}, [])


@each(
    ("text", "value"),
    [
        *[(one, one) for one in ("on", "2026-01-01", "0x1F", "007", "1.", "+1", ".5")],
        *[("'1'", "1"), ("-0", 0), ("1e3", 1000.0), ("True", True), ("~", None), ("", None), ("9" * 30, 10**30 - 1)],
    ],
)
def test_scalars_are_those_of_json(text, value):
    assert parse(f"a: {text}")[0].value == {"a": value}


@pytest.mark.slow
@each(
    "text",
    [
        "a: &a [*a]",
        "&a {b: *a}",
        "!!python/object:os.system x",
        "\x00",
        "[" * 5000,
        "a: &a [x, x]\nb: &b [*a, *a]\n"
        + "".join(f"k{n}: &k{n} [{', '.join(['*' + ('b' if n == 0 else f'k{n - 1}')] * 9)}]\n" for n in range(9)),
    ],
)
def test_no_yaml_breaks_the_check(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    pipeline, mistakes = examine(file, ledger="memory:")
    assert pipeline is None
    assert [one for one in mistakes if not one.is_warning]


WORDS = st.sampled_from(
    [
        *["name", "source", "steps", "sinks", "guard", "ndjson", "files", "key", "message.id", "call", "into", "lease"],
        *["function", "json:dumps", "filter", "where", "map", "set", "to", "switch", "cases", "when", "on_error"],
        *["retry", "each", "items", "stdout", "file", "path", "on_lapse", "park", "1s", "examples", "input"],
        *["${X}", "hold", "every", "send", "otherwise", "run", "command", "value"],
    ]
)
SCALARS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(0, 9), st.floats(allow_nan=False), st.text(max_size=8))
branches = lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5))
TREES = st.recursive(SCALARS, branches, max_leaves=25)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(WORDS, TREES, max_size=8))
def test_any_tree_gives_mistakes_with_places_in_the_file(tmp_path, tree):
    file = tmp_path / "fuzzed.yaml"
    text = yaml.safe_dump(tree, allow_unicode=True)
    file.write_text(text)
    pipeline, mistakes = examine(file, ledger="memory:")
    lines = text.count("\n") + 1
    assert all(1 <= one.place.line <= lines + 1 and one.place.column >= 1 and one.text for one in mistakes)
    assert (pipeline is None) == any(not one.is_warning for one in mistakes)


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("orders.ndjson", {"id": 1})
    return made


def test_vet_prints_each_mistake_with_its_place(cli):
    cli.write("a.yaml", GOOD.replace("message.id", "wrong.id"))
    result = cli.run("vet", "a.yaml")
    assert result.returncode == 1
    assert result.stdout.decode().startswith("a.yaml:4:3: mistake: key='wrong.id'")
    assert result.stderr == "1 mistake\n"


def test_a_dry_run_makes_nothing_and_touches_no_ledger(cli):
    text = GOOD.replace("stdout:", "file: {path: out.ndjson}")
    cli.write("a.yaml", text)
    cli.write("orders.ndjson", '{"id": 1}\nno JSON\n')
    result = cli.run("run", "a.yaml", "--dry-run")
    assert result.stdout == b'pay: {"id":1}\nfile: {"id":1,"paid":null}\n'
    assert "malformed 1" in result.stderr
    assert sorted(one.name for one in cli.folder.iterdir()) == ["a.yaml", "orders.ndjson"]


def test_a_duplicate_whose_output_was_too_large_for_the_record_is_told(cli):
    cli.write("a.yaml", "name: a\nsource: {ndjson: {files: [orders.ndjson]}}\nguard: {}\nsinks: [{stdout: null}]\n")
    cli.write("orders.ndjson", {"text": "x" * 300_000})
    first, second = cli.run("run", "a.yaml"), cli.run("run", "a.yaml")
    assert (len(first.stdout), second.stdout) == (300_012, b"")
    assert "1 duplicate(s) printed nothing, because their output was too large to be recorded" in second.stderr


@each(
    ("source", "worker"),
    [
        (KafkaSource, KafkaWorker),
        (NatsSource, NatsWorker),
        (RabbitmqSource, RabbitWorker),
        (RedisStreamsSource, RedisStreamsWorker),
        (SqsSource, SqsWorker),
    ],
)
def test_a_queues_settings_are_its_workers_arguments(source, worker):
    assert issubclass(worker, Worker)
    _, _, place, _, *options = inspect.signature(worker.__init__).parameters.values()
    own = [place.name, *(one.name for one in options if one.kind is one.KEYWORD_ONLY)]
    fields = {field.name: field.default for field in msgspec.structs.fields(source)}
    assert sorted(fields) == sorted(own)
    defaults = {one.name: one.default for one in options if one.kind is one.KEYWORD_ONLY}
    assert {name: default for name, default in fields.items() if name in defaults} == defaults


@each(
    ("source", "what"),
    [
        ({"kafka": {"topic": "orders", "settings": {"enable_auto_commit": True}}}, "enable_auto_commit"),
        ({"nats": {"subject": "orders.*"}}, "give dead="),
        ({"nats": {"subject": "orders", "durables": "x"}}, "durable"),
        ({"nats": {"subject": "orders", "settings": {"bogus": 1}}}, "nats.connect has no bogus"),
        ({"rabbitmq": {"queue": "orders", "url": "http://rabbit"}}, "amqp://"),
        ({"rabbitmq": {"queue": "orders", "dead": "orders"}}, "both the queue"),
        ({"redis_streams": {"stream": "orders", "url": "redis://r/0?protocol=3"}}, "leave protocol out"),
        ({"redis_streams": {"stream": "orders", "dead": "orders"}}, "both the stream"),
        ({"redis_streams": {"stream": "orders", "url": "redis://r/0?bogus=s3cret"}}, "a name that redis-py does not"),
        ({"sqs": {"queue": "orders", "wait": 60}}, "<= 20"),
        ({"webhook": {}}, "give provider: and its secret, or token:"),
        ({"webhook": {"provider": "github"}}, "a secret is missing"),
        ({"webhook": {"provider": "github", "secret": "s", "token": "t"}}, "give provider"),
        ({"webhook": {"provider": "sns", "topics": []}}, "give the ARNs"),
        ({"webhook": {"token": ""}}, "token is missing or empty"),
    ],
)
def test_a_source_that_is_wrong_is_told_with_its_place(tmp_path, aws, source, what):
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\nledger: 'memory:'\nguard: {{}}\nsource: {json.dumps(source)}\nsinks: [{{stdout: }}]\n")
    with pytest.raises(PipelineInvalid, match=r"p\.yaml:4:\d+: ") as told:
        load(file)
    assert what in str(told.value)
    assert "s3cret" not in str(told.value)
