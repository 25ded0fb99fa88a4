"""Sends one order twice."""

import json

import boto3

sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
for _ in range(2):
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"id": 42}))
