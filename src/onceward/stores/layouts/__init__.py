"""Tables of other systems, as ledgers."""
