"""Lambda's event sources: from an event to deliveries, and from outcomes to the answer that the source expects."""
