"""Messages, their brokers' shops and workers, and batches."""
