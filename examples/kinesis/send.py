"""Makes the stream, and sends four orders. The producer tries order 2 again, so it comes twice."""

import json
import time

import boto3

kinesis = boto3.client("kinesis")
kinesis.create_stream(StreamName="orders", ShardCount=1)
while kinesis.describe_stream(StreamName="orders")["StreamDescription"]["StreamStatus"] != "ACTIVE":
    time.sleep(0.1)
for number in (1, 2, 2, 3, 4):
    kinesis.put_record(StreamName="orders", PartitionKey="shop", Data=json.dumps({"id": number}).encode())
