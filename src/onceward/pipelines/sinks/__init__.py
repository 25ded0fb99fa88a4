"""The sinks of a pipeline, a class each. ``pipelines/kit.py`` says what a sink is."""

from typing import Final

# Name in the file → module and class.
SINKS: Final = {
    "eventbridge": "onceward.pipelines.sinks.targets:EventbridgeSink",
    "file": "onceward.pipelines.sinks.lines:FileSink",
    "firehose": "onceward.pipelines.sinks.targets:FirehoseSink",
    "http": "onceward.pipelines.sinks.targets:HttpSink",
    "kafka": "onceward.pipelines.sinks.targets:KafkaSink",
    "kinesis": "onceward.pipelines.sinks.targets:KinesisSink",
    "nats": "onceward.pipelines.sinks.targets:NatsSink",
    "rabbitmq": "onceward.pipelines.sinks.targets:RabbitmqSink",
    "redis_stream": "onceward.pipelines.sinks.targets:RedisStreamSink",
    "s3": "onceward.pipelines.sinks.s3:S3Sink",
    "sns": "onceward.pipelines.sinks.targets:SnsSink",
    "sqs": "onceward.pipelines.sinks.targets:SqsSink",
    "stdout": "onceward.pipelines.sinks.lines:StdoutSink",
}
