"""The attribute with which an SQS message carries its key. Queues write it and Lambda's events read it."""

KEY_ATTRIBUTE = "onceward-key"  # a message's default key
