"""FastStream: handlers of NATS JetStream, Redis Streams, RabbitMQ and Kafka, each message once.

``handler`` has the decorator :func:`exactly`. What becomes of a message is a ``settlement``; ``on_nats``, ``on_redis``, ``on_rabbit`` and
``on_kafka`` say what that is at each broker, and which settings lose messages.
"""

from onceward.faststream.handler import exactly

__all__ = ["exactly"]
