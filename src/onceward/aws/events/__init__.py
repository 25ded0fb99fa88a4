"""Lambda's event sources: from an event to deliveries, and from outcomes to the answer that the source expects."""

KEY_ATTRIBUTE = "onceward-key"  # the message attribute with a message's default key
ENVELOPE = "onceward"  # the member of an EventBridge event's detail with a message's key and headers
