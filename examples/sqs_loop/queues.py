"""Makes a queue with a dead-letter queue, and a short visibility timeout."""

import json

import boto3

sqs = boto3.client("sqs")
dead = sqs.create_queue(QueueName="orders-dlq")["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 10})
sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "5", "RedrivePolicy": policy})
