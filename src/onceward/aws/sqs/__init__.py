"""A client for SQS queues, a worker on it, and a producer that sends once."""
