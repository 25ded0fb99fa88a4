"""The sinks of a pipeline: one class a file. ``contract.py`` says what a sink is."""

from typing import Final

# Name in the file → module and class.
SINKS: Final = {
    "eventbridge": "onceward.pipelines.sinks.aws:EventbridgeSink",
    "file": "onceward.pipelines.sinks.file:FileSink",
    "firehose": "onceward.pipelines.sinks.aws:FirehoseSink",
    "http": "onceward.pipelines.sinks.http:HttpSink",
    "kafka": "onceward.pipelines.sinks.brokers:KafkaSink",
    "kinesis": "onceward.pipelines.sinks.aws:KinesisSink",
    "nats": "onceward.pipelines.sinks.brokers:NatsSink",
    "rabbitmq": "onceward.pipelines.sinks.brokers:RabbitmqSink",
    "redis_stream": "onceward.pipelines.sinks.brokers:RedisStreamSink",
    "s3": "onceward.pipelines.sinks.s3:S3Sink",
    "sns": "onceward.pipelines.sinks.aws:SnsSink",
    "sqs": "onceward.pipelines.sinks.aws:SqsSink",
    "stdout": "onceward.pipelines.sinks.stdout:StdoutSink",
}
