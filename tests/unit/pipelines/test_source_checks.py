"""What ``onceward vet`` says of each source, before anything runs."""

import inspect
import json

import msgspec
import pytest

from onceward.aws.sqs.broker import SqsWorker
from onceward.consumers.worker import Worker
from onceward.kafka.broker import KafkaWorker
from onceward.nats.broker import NatsWorker
from onceward.pipelines import PipelineInvalid, load
from onceward.pipelines.sources.brokers import KafkaSource, NatsSource, RabbitmqSource, RedisStreamsSource, SqsSource
from onceward.rabbitmq.broker import RabbitWorker
from onceward.redis_streams.broker import RedisStreamsWorker
from tables import each


@pytest.fixture
def vetted(tmp_path, aws):
    """Give a function that loads a pipeline with a source, and returns it."""

    def load_with(source):
        file = tmp_path / "p.yaml"
        text = f"name: p\nledger: 'memory:'\nguard: {{}}\nsource: {json.dumps(source)}\nsinks: [{{stdout: }}]\n"
        file.write_text(text)
        return load(file)

    return load_with


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
def test_a_source_that_is_wrong_is_told_with_its_place(vetted, source, what):
    with pytest.raises(PipelineInvalid, match=r"p\.yaml:4:\d+: ") as told:
        vetted(source)
    assert what in str(told.value)
    assert "s3cret" not in str(told.value)
