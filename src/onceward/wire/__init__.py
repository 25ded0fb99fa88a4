"""Our own wire to AWS: calls signed, sent over sockets and answered, blocking or awaited. It knows no store and no queue."""
