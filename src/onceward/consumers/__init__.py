"""What consumers of any queue need: deliveries, their payloads and keys, and being told to stop."""
