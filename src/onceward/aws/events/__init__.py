"""Lambda's event sources: from an event to deliveries, and from outcomes to the answer that the source expects."""

KEY_ATTRIBUTE = "onceward-key"  # the message attribute with a message's default key
