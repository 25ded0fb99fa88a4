"""One key: the claim that a handler sees, the guard around it, and its heartbeat."""
