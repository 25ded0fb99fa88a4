"""The sources of a pipeline. ``pipelines/flow.py`` says what a source is."""

from typing import Final

# Name in the file → module and class.
SOURCES: Final = {
    "csv": "onceward.pipelines.sources.lines:CsvSource",
    "kafka": "onceward.pipelines.sources.brokers:KafkaSource",
    "lambda": "onceward.pipelines.sources.brokers:LambdaSource",
    "nats": "onceward.pipelines.sources.brokers:NatsSource",
    "ndjson": "onceward.pipelines.sources.lines:NdjsonSource",
    "rabbitmq": "onceward.pipelines.sources.brokers:RabbitmqSource",
    "redis_streams": "onceward.pipelines.sources.brokers:RedisStreamsSource",
    "schedule": "onceward.pipelines.sources.schedule:ScheduleSource",
    "sqs": "onceward.pipelines.sources.brokers:SqsSource",
    "webhook": "onceward.pipelines.sources.webhook:WebhookSource",
}
