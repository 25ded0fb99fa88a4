"""The sources of a pipeline: one class a file. ``contract.py`` says what a source is."""

from typing import Final

# Name in the file → module and class.
SOURCES: Final = {
    "csv": "onceward.pipelines.sources.csv:CsvSource",
    "kafka": "onceward.pipelines.sources.kafka:KafkaSource",
    "lambda": "onceward.pipelines.sources.lambda_events:LambdaSource",
    "nats": "onceward.pipelines.sources.nats:NatsSource",
    "ndjson": "onceward.pipelines.sources.ndjson:NdjsonSource",
    "rabbitmq": "onceward.pipelines.sources.rabbitmq:RabbitmqSource",
    "redis_streams": "onceward.pipelines.sources.redis_streams:RedisStreamsSource",
    "schedule": "onceward.pipelines.sources.schedule:ScheduleSource",
    "sqs": "onceward.pipelines.sources.sqs:SqsSource",
    "webhook": "onceward.pipelines.sources.webhook:WebhookSource",
}
