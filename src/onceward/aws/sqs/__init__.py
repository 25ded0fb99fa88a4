"""A client for SQS queues, a worker on it, and a producer that sends once."""

KEY_ATTRIBUTE = "onceward-key"  # the message attribute with a message's default key
