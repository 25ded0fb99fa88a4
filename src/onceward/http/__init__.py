"""The rules of Idempotency-Key over HTTP, for any framework."""
