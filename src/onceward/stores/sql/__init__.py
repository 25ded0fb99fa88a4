"""What the stores in SQL servers share: the columns of a record, and which records may be purged."""
